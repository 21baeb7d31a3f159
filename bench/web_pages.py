"""Twenty web pages with the text that a reader would want from each: generated, so that they belong to nobody.

Each page has a layout that is common on the web, with the usual clutter around the content. The words are random, but
the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

VOCABULARY = """
    harbour rope tide lantern anchor signal current weather compass island captain vessel market ledger cargo timber
    canvas needle thread copper engine valve gauge pressure storm coast bridge tower window garden stone river mountain
    village road letter paper print colour light shadow winter summer morning evening bread salt water glass iron wood
    carry measure repair follow answer gather divide explain observe build travel collect protect remember between
    across under often rarely quickly together without several another early later large narrow steady quiet bright
"""
WORDS = VOCABULARY.split()


@dataclass
class Content:
    """The content of a page as it grows: its HTML and its text."""

    rng: random.Random
    html: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def words(self, count: int) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(count))

    def sentence(self) -> str:
        return self.words(self.rng.randint(8, 18)).capitalize() + "."

    def sentences(self, count: int) -> str:
        return " ".join(self.sentence() for _ in range(count))

    def add(self, tag: str, text: str) -> None:
        self.html.append(f"<{tag}>{text}</{tag.partition(' ')[0]}>")
        self.text.append(text)

    def paragraph(self) -> None:
        before, word, after = self.sentences(2), self.words(2), self.sentences(2)
        self.html.append(f'<p>{before} <a href="/wiki/{word.replace(" ", "-")}">{word}</a> <em>{after}</em></p>')
        self.text.append(f"{before} {word} {after}")

    def items(self, tag: str, count: int) -> None:
        lines = [self.sentence() for _ in range(count)]
        self.html.append(f"<{tag}>" + "".join(f"<li>{line}</li>" for line in lines) + f"</{tag}>")
        self.text.extend(lines)

    def table(self, rows: int, columns: int) -> None:
        cells = [[self.words(2) for _ in range(columns)] for _ in range(rows + 1)]
        head = "".join(f"<th>{cell}</th>" for cell in cells[0])
        body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells[1:])
        self.html.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        self.text.extend(" ".join(row) for row in cells)

    def code(self) -> None:
        lines = [f"{self.rng.choice(WORDS)}({self.rng.choice(WORDS)}, {number})" for number in range(6)]
        self.html.append('<pre><code class="language-python">' + "\n".join(lines) + "</code></pre>")
        self.text.extend(lines)


def article(content: Content) -> None:
    for _ in range(14):
        content.add("h2", content.words(4).capitalize())
        content.paragraph()
        content.paragraph()


def manual(content: Content) -> None:
    for _ in range(14):
        content.add("h2", content.words(3).capitalize())
        content.paragraph()
        content.code()
        content.items("ol", 4)


def tables(content: Content) -> None:
    for _ in range(6):
        content.paragraph()
        content.table(12, 4)


def questions(content: Content) -> None:
    for _ in range(25):
        content.add("h3", content.words(6).capitalize() + "?")
        content.add("p", content.sentences(3))


def lists(content: Content) -> None:
    for _ in range(14):
        content.add("h2", content.words(3).capitalize())
        content.items("ul", 9)


def quotes(content: Content) -> None:
    for _ in range(20):
        content.paragraph()
        content.add("blockquote", content.sentences(2))


def definitions(content: Content) -> None:
    content.paragraph()
    pairs = [(content.words(2), content.sentences(2)) for _ in range(40)]
    content.html.append("<dl>" + "".join(f"<dt>{term}</dt><dd>{text}</dd>" for term, text in pairs) + "</dl>")
    content.text.extend(f"{term} {text}" for term, text in pairs)


def short(content: Content) -> None:
    content.add("p", content.sentence())
    content.table(2, 2)


BODIES: tuple[Callable[[Content], None], ...] = (
    article, manual, tables, questions, lists, quotes, definitions, short, article, manual,
)  # fmt: skip


def clutter(rng: random.Random) -> dict[str, str]:
    """What stands around the content: menus, related links, a newsletter, scripts."""
    content = Content(rng)
    links = "".join(f'<li><a href="/{number}">{content.words(3)}</a></li>' for number in range(60))
    cards = "".join(f'<div class="card"><a href="/r{n}">{content.words(6)}</a></div>' for n in range(12))
    script = "".join(f"window.x{number} = '{content.words(10)}';" for number in range(60))
    style = "".join(f".c{number} {{ margin: {number}px; padding: 1px }}" for number in range(150))
    return {
        "head": f"<style>{style}</style><script>{script}</script>",
        "menu": f'<header><nav class="menu"><ul>{links}</ul></nav></header>',
        "side": f'<aside class="sidebar"><h3>Related</h3>{cards}<form><input name="mail"></form></aside>',
        "foot": f"<footer><ul>{links}</ul><p>All rights reserved. Terms.</p></footer><script>{script}</script>",
    }


FRAMES = (
    "{menu}<main><article><h1>{title}</h1>{body}</article></main>{side}{foot}",
    '{menu}<div class="wrapper"><div class="post-content"><h1>{title}</h1>{body}</div>{side}</div>{foot}',
    '{menu}<div id="content" role="main"><h1>{title}</h1><div>{body}</div></div>{foot}',
    '<div class="header">{menu}</div><article class="entry"><header><h1>{title}</h1></header>'
    '<div class="entry-content">{body}</div></article>{side}{foot}',
)


@dataclass(frozen=True)
class SavedPage:
    name: str
    html: str
    text: str


def saved_pages() -> list[SavedPage]:
    """The twenty pages."""
    pages = []
    for number in range(20):
        rng = random.Random(number)
        content = Content(rng)
        title = content.words(5).capitalize()
        BODIES[number % len(BODIES)](content)
        around = clutter(rng)
        frame = FRAMES[number % len(FRAMES)].format(title=title, body="\n".join(content.html), **around)
        head = f"<title>{title} | Site</title><meta charset='utf-8'>{around['head']}"
        html = f"<!doctype html><html lang='en'><head>{head}</head><body>{frame}</body></html>"
        pages.append(SavedPage(f"page-{number:02}.html", html, "\n".join([title, *content.text])))
    return pages
