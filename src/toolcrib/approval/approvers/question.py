"""The words of the question that a person reads at a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from toolcrib.approval.approvers.escape import pieces, shortened, visible, width
from toolcrib.approval.approvers.rows import Style, command_rows
from toolcrib.core.approvals import ApprovalRequest, Danger

MAX_SENTENCE_CHARS = 300
MAX_DANGERS = 12
MAX_GRANTS = 6


def wants_colour(environment: Mapping[str, str]) -> bool:
    """Whether colour is welcome: NO_COLOR is not set, and the terminal understands more than text."""
    return not environment.get("NO_COLOR") and environment.get("TERM", "dumb") not in ("", "dumb")


def question(
    request: ApprovalRequest, touched: Sequence[str], columns: int, style: Style, *, whole: bool = False
) -> str:
    """The call, its dangers and what it would touch, for a terminal of so many columns."""
    where = [f"in {_sentence(request.cwd)}"] if request.cwd else []
    if request.backend != "local":
        where.append(f"on {_sentence(request.backend)}")
    head = " ".join([f"{_sentence(request.title or request.tool)} asks to run", *where])
    rows = ["", *_folded(f"{head}:", columns, style, bold=True)]
    rows += command_rows(request.command, request.dangers, columns, style, whole=whole)
    if _has_escapes(request.command.replace("\n", "")):
        rows += _folded(r"Hidden or control characters are shown as \x1b, \u200b and the like.", columns, style)
    shown = request.dangers if whole else request.dangers[:MAX_DANGERS]
    for number, danger in enumerate(shown, 1):
        rows += _folded(_danger_line(number, danger), columns, style, indent="   ")
    if len(request.dangers) > len(shown):
        rows += _folded(f"and {len(request.dangers) - len(shown)} more dangers, press e", columns, style)
    for line in touched:
        rows += _folded(f"-> {visible(line)}", columns, style, indent="   ")
    return "\n".join(rows) + "\n"


def choices(request: ApprovalRequest, written: Sequence[str], columns: int, style: Style) -> str:
    """What each answer would mean for this very call; `written` is what "always" would add to the config."""
    lines = ["[o] once", f"[s] for this session, also for later: {scopes_in_words(request)}"]
    if has_scope(request):
        lines.append(f"[k] this kind for this session, anywhere: {_some(kinds(request))}")
    if request.may_be_permanent:
        lines.append(f"[a] always: adds to command_allowlist in config.yaml: {_some(written)}")
    lines.append("[d] deny  [r] deny with a reason  [e] show everything  [?] help")
    return "".join(row + "\n" for line in lines for row in _folded(line, columns, style, indent="    "))


def key_line(request: ApprovalRequest, columns: int, style: Style) -> str:
    """The keys alone, in as many rows as a narrow terminal needs."""
    always = "a always  " if request.may_be_permanent else ""
    kind = "k kind  " if has_scope(request) else ""
    keys = f"o once  s session  {kind}{always}d deny  r reason  e everything  ? help"
    return "".join(row + "\n" for row in _folded(keys, columns, style))


def help_text(request: ApprovalRequest, written: Sequence[str], columns: int, style: Style) -> str:
    """What each key does for this very call."""
    lines = {
        "o": "run it, this once",
        "s": f"run it, and until this session ends do not ask again about: {scopes_in_words(request)}",
        "k": f"run it, and until this session ends do not ask again, wherever it is, about: {_some(kinds(request))}",
        "a": f"run it, and never ask again: adds to command_allowlist in config.yaml: {_some(written)}",
        "d": "do not run it",
        "r": "do not run it, and tell the model why: type the reason, then Enter",
        "e": "show the whole command and every danger",
        "?": "this help; Ctrl-C cancels the call; Enter alone decides nothing",
    }
    if not request.may_be_permanent:
        del lines["a"]
    if not has_scope(request):
        del lines["k"]
    rows = [row for key, does in lines.items() for row in _folded(f"{key}  {does}", columns, style, indent="   ")]
    return "".join(row + "\n" for row in rows)


def has_scope(request: ApprovalRequest) -> bool:
    """Whether there is something wider to agree to than what this very call does."""
    return any(danger.scope for danger in request.dangers)


def kinds(request: ApprovalRequest) -> list[str]:
    """The kinds of danger, whatever their scope."""
    return list(dict.fromkeys(danger.description for danger in request.dangers))


def scopes_in_words(request: ApprovalRequest) -> str:
    """What a session answer covers, as a person says it."""
    return _some(list(dict.fromkeys(grant_in_words(danger) for danger in request.dangers)))


def grant_in_words(danger: Danger) -> str:
    """A danger and its scope: "recursive delete, inside the workspace"."""
    return ", ".join(_sentence(part) for part in (danger.description, danger.scope) if part)


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - MAX_GRANTS} more" if len(texts) > MAX_GRANTS else ""
    return "; ".join(_sentence(text) for text in texts[:MAX_GRANTS]) + more


def _danger_line(number: int, danger: Danger) -> str:
    scope = f" ({danger.scope})" if danger.scope else ""
    return f"{number}. {_sentence(danger.description + scope)}: {_sentence(danger.reason)}"


def _has_escapes(text: str) -> bool:
    # The quick test sees all but what only looks empty; that is looked for where a person would look.
    return not text.isprintable() or any(escaped for _, escaped in pieces(text[:20_000]))


def _sentence(text: str) -> str:
    """Text from a request on one line, escaped and of bounded length."""
    return visible(shortened(text, MAX_SENTENCE_CHARS))


def _folded(line: str, columns: int, style: Style, *, indent: str = "", bold: bool = False) -> list[str]:
    room = max(16, columns - 1)
    if width(line) == len(line):
        rows = textwrap.wrap(line, room, subsequent_indent=indent, break_on_hyphens=False) or [""]
    else:
        rows = _folded_by_width(line, room, indent)
    return [style.bold(row) for row in rows] if bold else rows


def _folded_by_width(line: str, room: int, indent: str) -> list[str]:
    """Folded anywhere: text with wide characters seldom has spaces to fold at."""
    rows, used = [""], 0
    for character in line:
        wide = width(character)
        if used + wide > room:
            rows.append(indent)
            used = len(indent)
        rows[-1] += character
        used += wide
    return rows
