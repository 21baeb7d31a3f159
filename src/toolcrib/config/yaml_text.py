"""Parses YAML text into plain data with the line of every key: YAML 1.2, one document, no surprises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from toolcrib.core.errors import ConfigError
from toolcrib.core.lazy import ruamel_yaml

if TYPE_CHECKING:
    from ruamel.yaml.nodes import Node

KeyPath = tuple[str | int, ...]
TAG = "tag:yaml.org,2002:"
# Anchors let a small file expand to an enormous one; no settings file needs this many values.
MAX_VALUES = 50_000
MAX_DEPTH = 100


class Document(Struct):
    """A parsed YAML text. `lines` has the line of every value, counted from 1; `root` is None for an empty text."""

    data: Any = None
    root: Node | None = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)
    """The line and the message."""

    def line_of(self, path: KeyPath) -> int:
        """The line of a value, or of the nearest thing around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def is_blank(text: str) -> bool:
    """Whether a text contains only comments and whitespace."""
    return all(not line.strip() or line.lstrip().startswith("#") for line in text.split("\n"))


def parse(text: str, name: str, check_command: str = "toolcrib config check") -> Document:
    """Parse one document; broken YAML raises a ConfigError with the position in `name` and the command to run next."""
    if is_blank(text):
        return Document()
    yaml = ruamel_yaml.YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
        if root is None:
            return Document()
        document = Document(root=root)
        document.data = _Plain(document, yaml.constructor.construct_object).value(root, ())
        return document
    except ruamel_yaml.error.YAMLError as error:
        raise ConfigError(_broken(error, text, name, check_command)) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: values are nested too deeply; write them flatter") from error


class _Plain:
    """Builds plain data from the composed nodes of one document."""

    def __init__(self, document: Document, construct: Any) -> None:
        self._document = document
        self._construct = construct
        self._count = 0

    def value(self, node: Any, path: KeyPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(path) > MAX_DEPTH:
            # An anchor that contains itself never ends; the message for deep nesting fits both.
            raise RecursionError
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag == TAG + "map":
            return self._mapping(node, path)
        if node.tag == TAG + "seq":
            return [self.value(item, (*path, at)) for at, item in enumerate(node.value)]
        return self._scalar(node)

    def _scalar(self, node: Any) -> Any:
        # YAML 1.2 has no dates: they stay text.
        if node.tag in (TAG + "str", TAG + "timestamp") and isinstance(node.value, str):
            return node.value
        if node.tag in (TAG + "null", TAG + "bool", TAG + "int", TAG + "float"):
            try:
                return self._construct(node)
            except (ValueError, KeyError):
                self._problem(node, f"{node.value!r} does not match its tag; remove the tag")
                return None
        self._problem(node, f"the tag {node.tag!r} is not supported; write the value without it")
        return None

    def _mapping(self, node: Any, path: KeyPath) -> dict[Any, Any]:
        merged: dict[Any, Any] = {}
        own: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == TAG + "merge":
                merged |= self._merge(value_node, path)
                continue
            if isinstance(key_node.value, list):
                self._problem(key_node, "a list or mapping cannot be a key; use text")
                continue
            key = self._scalar(key_node)
            place = (*path, key)
            if key in own:
                first = self._document.lines[place]
                self._problem(
                    key_node, f"{dotted(place)!r} is written twice, first in line {first}; keep one of the two"
                )
                continue
            self._document.lines[place] = key_node.start_mark.line + 1
            own[key] = self.value(value_node, place)
        return merged | own

    def _merge(self, node: Any, path: KeyPath) -> dict[Any, Any]:
        sources = node.value if node.tag == TAG + "seq" else [node]
        merged: dict[Any, Any] = {}
        for source in reversed(sources):
            if source.tag != TAG + "map":
                self._problem(source, "`<<` needs a mapping; write the keys out instead")
                continue
            merged |= self._mapping(source, path)
        return merged

    def _problem(self, node: Any, message: str) -> None:
        self._document.problems.append((node.start_mark.line + 1, message))


def dotted(path: KeyPath) -> str:
    """A path as people write it: `tools.max_parallel`."""
    return ".".join(str(part) for part in path)


def _broken(error: Any, text: str, name: str, check_command: str) -> str:
    """One sentence about broken YAML: file, line, column, what is wrong."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "context", None)
    if mark is not None:
        line, column = mark.line + 1, mark.column + 1
    else:
        before = text[: getattr(error, "position", 0)]
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        what = "it contains a character that YAML does not allow"
    return f"{name}:{line}:{column}: this is not valid YAML ({what}); correct that line, then run `{check_command}`"
