"""Snapshots of pages as a model reads them: an accessibility tree with refs, truncated to what matters.

Playwright writes the tree as indented lines such as `- button "Save" [ref=e12] [box=8,66,34,21]`. A ref names the same
element in later snapshots of the same page. Boxes say what is visible, and are not shown; a page that fits needs none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
from msgspec.structs import replace

MAX_LINE_CHARS = 400
MAX_URL_CHARS = 160
KEY_CHARS = 100
VISIBLE_MARGIN = 0.5
"""How much of a screen above and below the visible part still counts as visible."""
CHANGED_SHARE = 0.5
"""With more changed lines than this, a whole snapshot is easier to read than the changes."""

_LINE = re.compile(r"( *)- (.*)")
# The name is quoted and may contain anything, also what looks like a ref.
_HEAD = re.compile(r"(/?[a-z]+)(?: (\"(?:[^\"\\]|\\.)*\"))?((?: \[[^\]]*\])*)(:.*)?", re.DOTALL)
_QUOTED_KEY = re.compile(r"'((?:[^']|'')*)'(:.*)?", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:[xu]([0-9a-fA-F]{4}|[0-9a-fA-F]{2})|(.))", re.DOTALL)
_BOX = re.compile(r" \[box=[-\d.,e]+\]")
_ATTRIBUTE = re.compile(r" \[([^\]]*)\]")
_GIVEN_REF = re.compile(r"\s*(?:\[?\s*ref\s*=\s*)?@?((?:f\d+)?e\d+)\s*\]?\s*", re.IGNORECASE)
_BARE = frozenset(
    "generic group listitem list paragraph rowgroup row none presentation region main section".split()  # noqa: SIM905
)

INTERACTIVE = frozenset(
    "button link textbox searchbox checkbox radio combobox option tab menuitem menuitemcheckbox menuitemradio "  # noqa: SIM905
    "slider spinbutton switch treeitem listbox gridcell".split()
)


class SnapshotNode(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a snapshot."""

    depth: int
    role: str
    name: str = ""
    states: str = ""
    """Such as ` [checked] [level=1]`."""
    value: str = ""
    """What follows: `:` for children, or `: text`."""
    ref: str = ""
    box: tuple[int, int, int, int] | None = None
    """In pixels of the main page, relative to its visible part."""
    is_pointer: bool = False
    in_frame: bool = False

    @property
    def line(self) -> str:
        name = f" {self.name}" if self.name else ""
        ref = f" [ref={self.ref}]" if self.ref else ""
        return f"{'  ' * self.depth}- {self.role}{name}{self.states}{ref}{self.value}"

    @property
    def is_bare(self) -> bool:
        """Whether it only contains others."""
        return self.role in _BARE and not self.name and not self.is_pointer and self.value in ("", ":")

    @property
    def label(self) -> str:
        """Its name as people read it."""
        return self.name[1:-1].replace('\\"', '"') if self.name else self.value.removeprefix(":").strip()

    @property
    def is_interactive(self) -> bool:
        return bool(self.ref) and (self.role in INTERACTIVE or self.is_pointer)


class PageSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a page showed at one moment."""

    nodes: tuple[SnapshotNode, ...]
    height: int
    """Of the visible part, in pixels."""

    @property
    def refs(self) -> dict[str, SnapshotNode]:
        return {node.ref: node for node in self.nodes if node.ref}

    def lines(self, *, full: bool = False) -> list[str]:
        """The whole tree; unless full, without containers that say nothing."""
        return [node.line for node in (self.nodes if full else _compact(self.nodes))]

    @property
    def has_filled_frames(self) -> bool:
        """Whether a field in a frame shows a value."""
        return any(node.in_frame and hidden is not None for node, hidden in self._values())

    def without(self, secrets: Collection[str]) -> PageSnapshot:
        """The snapshot with these values of fields masked."""
        if not secrets:
            return self
        keys = {_value_key(secret) for secret in secrets}
        nodes = (replace(node, value=": ••••") if value in keys else node for node, value in self._values())
        return replace(self, nodes=tuple(nodes))

    def _values(self) -> Iterator[tuple[SnapshotNode, str | None]]:
        """Each node, with a key for the value of a field if it shows one."""
        field_depth = math.inf
        for node in self.nodes:
            if node.depth <= field_depth:
                field_depth = node.depth if node.role == "textbox" else math.inf
            # A field that also has a placeholder shows its value as a text in it.
            is_value = node.role == "textbox" or (node.role == "text" and node.depth > field_depth)
            yield node, _value_key(node.value[1:]) if is_value and len(node.value) > 1 else None

    def marked(self) -> list[SnapshotNode]:
        """The visible elements that can be used, from top to bottom."""
        return [
            node
            for node in self.nodes
            if node.is_interactive and node.box is not None and node.box[2] > 0 and self._is_visible(node, 0.0)
        ]

    def cut(self, limit: int, *, full: bool = False) -> tuple[str, int]:
        """The snapshot within the limit, and how many lines are left out: first those that are not visible."""
        nodes = list(self.nodes if full else _compact(self.nodes))
        lines = [node.line for node in nodes]
        if sum(map(len, lines)) + len(lines) <= limit:
            return "\n".join(lines), 0
        if not full:
            nodes = self._visible_nodes(nodes)
            shown = [node.line for node in nodes]
            lines_left_out = len(lines) - len(shown)
        else:
            shown, lines_left_out = lines, 0
        kept = _within(shown, limit)
        return "\n".join(kept), lines_left_out + len(shown) - len(kept)

    def _visible_nodes(self, nodes: Sequence[SnapshotNode]) -> list[SnapshotNode]:
        """The visible nodes with what they are in."""
        keep = [False] * len(nodes)
        above: list[int] = []
        for index, node in enumerate(nodes):
            while above and nodes[above[-1]].depth >= node.depth:
                above.pop()
            # A container is visible with its visible children only: it may be as high as the page.
            is_leaf = index + 1 == len(nodes) or nodes[index + 1].depth <= node.depth
            keep[index] = (is_leaf or node.is_interactive) and self._is_visible(node, VISIBLE_MARGIN)
            if keep[index]:
                for parent in above:
                    keep[parent] = True
            above.append(index)
        return [node for node, is_kept in zip(nodes, keep, strict=True) if is_kept]

    def _is_visible(self, node: SnapshotNode, margin: float) -> bool:
        if node.box is None:
            return False
        _, top, _, height = node.box
        return top + height > -margin * self.height and top < (1 + margin) * self.height


def read_snapshot(text: str, height: int, *, with_boxes: bool = True) -> PageSnapshot:
    """Playwright's snapshot as nodes."""
    nodes: list[SnapshotNode] = []
    above: list[SnapshotNode] = []
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        depth = len(found[1]) // 2
        while above and above[-1].depth >= depth:
            above.pop()
        frame = next((node for node in reversed(above) if node.role == "iframe"), None)
        left, top = frame.box[:2] if frame is not None and frame.box else (0, 0)
        node = _node(depth, found[2], left, top)
        if frame is not None:
            node = replace(node, in_frame=True)
        if with_boxes and above and (node.box is None or node.box[2:] == (0, 0)):
            # Plain text and closed options have no place of their own.
            node = replace(node, box=above[-1].box)
        nodes.append(node)
        above.append(node)
    return PageSnapshot(nodes=tuple(nodes), height=height)


def _node(depth: int, rest: str, left: int, top: int) -> SnapshotNode:
    quoted = _QUOTED_KEY.fullmatch(rest)
    if quoted is not None:
        rest = quoted[1].replace("''", "'") + (quoted[2] or "")
    found = _HEAD.fullmatch(rest)
    if found is None:
        return SnapshotNode(depth=depth, role="text", value=f": {_cut(rest, MAX_LINE_CHARS)}")
    role, name, attributes, value = found[1], found[2] or "", found[3] or "", found[4] or ""
    ref, box, is_pointer, states = "", None, False, ""
    for attribute in _ATTRIBUTE.findall(attributes):
        key, _, given = attribute.partition("=")
        if key == "ref":
            ref = given
        elif key == "box":
            x, y, width, height = (round(float(number)) for number in given.split(","))
            box = (x + left, y + top, width, height)
        elif key == "cursor":
            is_pointer = given == "pointer"
        else:
            states += f" [{attribute}]"
    value = _cut(value, MAX_URL_CHARS if role == "/url" else MAX_LINE_CHARS)
    if len(name) > MAX_LINE_CHARS:
        name = f'{name[:MAX_LINE_CHARS]}…"'
    return SnapshotNode(
        depth=depth, role=role, name=name, states=states, value=value, ref=ref, box=box, is_pointer=is_pointer
    )


def _value_key(text: str) -> str:
    """The letters and digits of a value, to compare one as the page has it with one as the tree writes it.

    The tree quotes values, and leaves out spaces; long ones are cut.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == '"':
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else found[2], text)
    return "".join(filter(str.isalnum, text))[:KEY_CHARS]


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _compact(nodes: Iterable[SnapshotNode]) -> Iterable[SnapshotNode]:
    """The nodes without containers that have no name and no text; what is in them moves up."""
    dropped: list[int] = []
    for node in nodes:
        while dropped and dropped[-1] >= node.depth:
            dropped.pop()
        if node.is_bare:
            dropped.append(node.depth)
            continue
        if node.role == "/url" and node.value.lstrip(": \"'").startswith(("#", "javascript:")):
            continue
        yield replace(node, depth=node.depth - len(dropped)) if dropped else node


def _within(lines: Sequence[str], limit: int) -> list[str]:
    kept: list[str] = []
    used = 0
    for line in lines:
        used += len(line) + 1
        if used > limit:
            break
        kept.append(line)
    return kept


def changes(before: Sequence[str], after: Sequence[str]) -> tuple[list[str], int] | None:
    """The lines that are new, and how many are gone; None if so much changed that the whole page is easier to read."""
    old, new = Counter(line.strip() for line in before), Counter(line.strip() for line in after)
    gone = sum((old - new).values())
    left = new - old
    if sum(left.values()) > CHANGED_SHARE * len(after):
        return None
    added = []
    for line in after:
        key = line.strip()
        if left[key] > 0:
            left[key] -= 1
            added.append(key)
    return added, gone


def without_boxes(tree: str) -> str:
    """A snapshot of playwright as it is without the places of elements."""
    return _BOX.sub("", tree)


def given_ref(text: str) -> str:
    """The ref in what a model wrote: `e5`, `@e5`, `[ref=e5]`; empty if it is none."""
    found = _GIVEN_REF.fullmatch(text)
    return found[1].lower() if found else ""
