"""Turns HTML into Markdown with the standard library alone: for pages that the extraction library cannot read.

Finds the main part of a page by its elements (`main`, `article`), and leaves out navigation, forms and scripts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from urllib.parse import urljoin

VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())  # noqa: SIM905
# Never text for a reader.
HIDDEN = frozenset(
    "script style noscript template svg math iframe object embed canvas audio video head map select option datalist "  # noqa: SIM905
    "dialog".split()
)
AROUND = frozenset({"nav", "footer", "aside", "form", "button", "menu"})
AROUND_ROLES = frozenset({"navigation", "banner", "contentinfo", "complementary", "search", "dialog", "menu"})
BLOCKS = frozenset(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure footer form h1 h2 h3 "  # noqa: SIM905
    "h4 h5 h6 header hgroup hr html li main nav ol p pre section summary table tbody td tfoot th thead tr ul".split()
)
# An opening tag closes an open element of these, if no element of the second kind is between them.
_P = (frozenset({"p"}), frozenset({"table", "td", "th", "button"}))
_CLOSES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    **dict.fromkeys(BLOCKS - {"html", "body"}, _P),
    "li": (frozenset({"li"}), frozenset({"ul", "ol"})),
    "dt": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "dd": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "tr": (frozenset({"tr", "td", "th"}), frozenset({"table"})),
    "td": (frozenset({"td", "th"}), frozenset({"table", "tr"})),
    "th": (frozenset({"td", "th"}), frozenset({"table", "tr"})),
    "option": (frozenset({"option"}), frozenset({"select"})),
}
MAX_DEPTH = 150
MIN_MAIN_CHARS = 200
_SPACE = re.compile(r"[ \t\r\n\f]+")
_LANGUAGE = re.compile(r"(?:^|\s)(?:language|lang|highlight-source)-([\w+#.-]+)")
_INVISIBLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|font-size\s*:\s*0(?:px|em|%)?\s*(?:;|!|$)", re.IGNORECASE
)


class Element:
    """An element with its children: elements and texts."""

    __slots__ = ("attributes", "children", "tag")

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element | str] = []

    def walk(self) -> Iterator[Element]:
        """This element and all elements inside it, in order."""
        waiting = [self]
        while waiting:
            one = waiting.pop()
            yield one
            waiting.extend(child for child in reversed(one.children) if isinstance(child, Element))

    def text(self) -> str:
        """The visible text, with its white space collapsed."""
        pieces: list[str] = []
        waiting: list[Element | str] = [self]
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                pieces.append(one)
            elif one.tag not in HIDDEN:
                pieces.append(" " if one.tag in BLOCKS or one.tag == "br" else "")
                waiting.extend(reversed(one.children))
        return _SPACE.sub(" ", "".join(pieces)).strip()


class _TreeBuilder(HTMLParser):
    """Builds a tree as browsers roughly do; what is nested too deeply becomes flat."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("html", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "html":
            return
        if tag in _CLOSES:
            self._close_before(*_CLOSES[tag])
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID and len(self._open) < MAX_DEPTH:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        # In HTML a slash closes only what has no content anyway; in SVG it closes everything.
        if any(one.tag in ("svg", "math") for one in self._open):
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        for index in range(len(self._open) - 1, 0, -1):
            if self._open[index].tag == tag:
                del self._open[index:]
                return

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def _close_before(self, closed: frozenset[str], fences: frozenset[str]) -> None:
        outermost = 0
        for index in range(len(self._open) - 1, 0, -1):
            if self._open[index].tag in fences:
                break
            if self._open[index].tag in closed:
                outermost = index
        if outermost:
            del self._open[outermost:]


def parse_html(text: str) -> Element:
    """The elements of a page; every text is accepted."""
    builder = _TreeBuilder()
    builder.feed(text)
    builder.close()
    return builder.root


def page_title(root: Element) -> str:
    """The title that the page gives itself; empty if there is none."""
    title = heading = ""
    for element in root.walk():
        if element.tag == "meta" and element.attributes.get("property") == "og:title":
            return " ".join(element.attributes.get("content", "").split())
        if element.tag == "title" and not title:
            title = " ".join("".join(child for child in element.children if isinstance(child, str)).split())
        elif element.tag == "h1" and not heading:
            heading = element.text()
    return title or heading


def to_markdown(root: Element, url: str = "") -> str:
    """The readable part of a page as Markdown, with absolute links."""
    base = next((one.attributes["href"] for one in root.walk() if one.tag == "base" and one.attributes.get("href")), "")
    return _MarkdownWriter(urljoin(url, base) if base else url).write(main_part(root))


def main_part(root: Element) -> Element:
    """The element with the content of the page; the whole page if no element says so."""
    for is_main in (_is_main, lambda one: one.tag == "article"):
        found = [one for one in root.walk() if is_main(one)]
        # Several articles are a list, such as the front page of a blog.
        if len(found) == 1 and len(found[0].text()) >= MIN_MAIN_CHARS:
            return found[0]
    return root


def _is_main(element: Element) -> bool:
    return element.tag == "main" or element.attributes.get("role") == "main"


def _is_hidden(element: Element) -> bool:
    attributes = element.attributes
    return (
        element.tag in HIDDEN
        or is_invisible(attributes)
        or attributes.get("role") in AROUND_ROLES
        or (element.tag in AROUND and attributes.get("role") != "main")
    )


def is_invisible(attributes: Mapping[str, str]) -> bool:
    """Whether an element says itself that nobody sees it."""
    return (
        "hidden" in attributes
        or attributes.get("aria-hidden") == "true"
        or _INVISIBLE.search(attributes.get("style", "")) is not None
    )


class _MarkdownWriter:
    """Writes one element as Markdown: `block` gives blocks, `inline` the text inside them."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, element: Element) -> str:
        text = "\n\n".join(self._blocks(element, 0))
        return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" if text.strip() else ""

    def _blocks(self, element: Element, depth: int) -> list[str]:
        """The blocks inside an element; text between blocks is a paragraph."""
        blocks: list[str] = []
        line: list[str] = []

        def end_line() -> None:
            text = _tidy("".join(line))
            line.clear()
            if text:
                blocks.append(text)

        for child in element.children:
            if isinstance(child, str):
                line.append(_SPACE.sub(" ", child))
            elif _is_hidden(child):
                continue
            elif child.tag in BLOCKS or (depth < MAX_DEPTH and self._holds_blocks(child)):
                end_line()
                blocks.extend(self._block(child, depth + 1))
            else:
                line.append(self._inline(child, depth + 1))
        end_line()
        return blocks

    def _holds_blocks(self, element: Element) -> bool:
        return element.tag in ("a", "span", "font", "b", "strong", "em", "label") and any(
            isinstance(child, Element) and child.tag in BLOCKS for child in element.children
        )

    def _block(self, element: Element, depth: int) -> list[str]:
        writer = _WRITERS.get(element.tag)
        if writer is None:
            return self._blocks(element, depth)
        text = writer(self, element, depth)
        return [text] if text.strip() else []

    def _heading(self, element: Element, depth: int) -> str:
        text = _one_line(self._inside(element, depth))
        return f"{'#' * int(element.tag[1])} {text}" if text else ""

    def _list(self, element: Element, depth: int) -> str:
        items: list[str] = []
        for child in element.children:
            if not isinstance(child, Element) or _is_hidden(child):
                continue
            is_list = child.tag in ("ul", "ol")
            blocks = [self._list(child, depth + 1)] if is_list else self._blocks(child, depth + 1)
            text = "\n".join(block for block in blocks if block)
            if text:
                mark = "  " if is_list else f"{len(items) + 1}. " if element.tag == "ol" else "- "
                items.append(mark + text.replace("\n", "\n" + " " * len(mark)))
        return "\n".join(items)

    def _definitions(self, element: Element, depth: int) -> str:
        lines: list[str] = []
        for child in element.children:
            if not isinstance(child, Element) or _is_hidden(child):
                continue
            if child.tag == "div":
                lines.append(self._definitions(child, depth + 1))
                continue
            text = "\n".join(self._blocks(child, depth + 1))
            if text:
                lines.append(f"**{_one_line(text)}**" if child.tag == "dt" else f": {text}")
        return "\n".join(line for line in lines if line)

    def _quote(self, element: Element, depth: int) -> str:
        text = "\n\n".join(self._blocks(element, depth))
        return "\n".join(f"> {line}".rstrip() for line in text.splitlines())

    def _code(self, element: Element, _depth: int) -> str:
        code = _raw_text(element).strip("\n")
        if not code.strip():
            return ""
        inner = next((one for one in element.walk() if one.tag == "code"), element)
        names = f"{element.attributes.get('class', '')} {inner.attributes.get('class', '')}"
        language = found[1] if (found := _LANGUAGE.search(names)) else ""
        fence = "```"
        while fence in code:
            fence += "`"
        return f"{fence}{language}\n{code}\n{fence}"

    def _table(self, element: Element, depth: int) -> str:
        rows: list[list[str]] = []
        has_head = False
        for row in _rows(element):
            cells = [one for one in row.children if isinstance(one, Element) and one.tag in ("td", "th")]
            if not cells:
                continue
            has_head = has_head or (not rows and all(cell.tag == "th" for cell in cells))
            rows.append([self._cell(cell, depth) for cell in cells])
        rows = [row for row in rows if any(row)]
        width = max(map(len, rows), default=0)
        if width <= 1:
            # A table of one column is a layout, not data.
            return "\n\n".join(row[0].replace("\\|", "|") for row in rows)
        padded = [row + [""] * (width - len(row)) for row in rows]
        head = padded.pop(0) if has_head else [""] * width
        lines = [head, ["---"] * width, *padded]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def _cell(self, cell: Element, depth: int) -> str:
        return _one_line(" ".join(self._blocks(cell, depth + 1))).replace("|", "\\|")

    def _rule(self, _element: Element, _depth: int) -> str:
        return "---"

    def _inside(self, element: Element, depth: int) -> str:
        return "".join(
            _SPACE.sub(" ", child) if isinstance(child, str) else self._inline(child, depth + 1)
            for child in element.children
        )

    def _inline(self, element: Element, depth: int) -> str:
        tag = element.tag
        if _is_hidden(element) or depth > 2 * MAX_DEPTH:
            return ""
        if tag == "br":
            return "\n"
        if tag == "img":
            return self._image(element)
        if tag in ("code", "kbd", "samp", "tt"):
            code = _one_line(_raw_text(element))
            return f"`{code}`" if code and "`" not in code else code
        text = self._inside(element, depth)
        if tag in BLOCKS:
            return f" {text} "
        if tag == "a":
            return self._link(element, text)
        mark = {"b": "**", "strong": "**", "em": "*", "i": "*", "del": "~~", "s": "~~"}.get(tag, "")
        return _marked(text, mark) if mark else text

    def _link(self, element: Element, text: str) -> str:
        label, address = _one_line(text), element.attributes.get("href", "").strip()
        if not label or not address or address.startswith(("#", "javascript:", "data:")):
            return text
        return f"[{label}]({self._absolute(address)})"

    def _image(self, element: Element) -> str:
        alt, address = _one_line(element.attributes.get("alt", "")), element.attributes.get("src", "").strip()
        if not alt:
            return ""
        if not address or address.startswith("data:"):
            return f"[IMAGE: {alt}]"
        return f"![{alt}]({self._absolute(address)})"

    def _absolute(self, address: str) -> str:
        try:
            found = urljoin(self._url, address)
        except ValueError:
            found = address
        return found.replace(" ", "%20").replace("(", "%28").replace(")", "%29")


_WRITERS: dict[str, Callable[[_MarkdownWriter, Element, int], str]] = {
    **{f"h{level}": _MarkdownWriter._heading for level in range(1, 7)},
    "ul": _MarkdownWriter._list,
    "ol": _MarkdownWriter._list,
    "dl": _MarkdownWriter._definitions,
    "blockquote": _MarkdownWriter._quote,
    "pre": _MarkdownWriter._code,
    "table": _MarkdownWriter._table,
    "hr": _MarkdownWriter._rule,
}


def _rows(table: Element) -> Iterator[Element]:
    """The rows of a table, without those of tables inside it."""
    for child in table.children:
        if isinstance(child, Element):
            if child.tag == "tr":
                yield child
            elif child.tag in ("thead", "tbody", "tfoot"):
                yield from _rows(child)


def _raw_text(element: Element) -> str:
    """The text as it is written; for code."""
    pieces: list[str] = []
    waiting: list[Element | str] = [element]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            pieces.append(one)
        elif one.tag == "br":
            pieces.append("\n")
        else:
            waiting.extend(reversed(one.children))
    return "".join(pieces)


def _marked(text: str, mark: str) -> str:
    inside = text.strip()
    if not inside or mark in inside:
        return text
    start, end = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return f"{start}{mark}{inside}{mark}{end}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _tidy(text: str) -> str:
    lines = (_SPACE.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)
