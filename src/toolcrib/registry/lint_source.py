"""A tool file read without running it: what it registers, and which functions stand behind that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import msgspec

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Callable_ = FunctionNode | ast.Lambda

UNKNOWN: Any = object()
"""A value that only running the file could tell."""

_REGISTER_ORDER = (
    "name",
    "toolset",
    "schema",
    "handler",
    "check_fn",
    "requires_env",
    "is_async",
    "description",
    "emoji",
)
_TEXT_MAKERS = frozenset({"dumps", "tool_result", "tool_error", "str", "repr", "join", "format"})


class Registration(msgspec.Struct, frozen=True):
    """One `registry.register(...)` call, or one function under `@tool`."""

    node: ast.expr | FunctionNode
    options: dict[str, ast.expr]
    function: FunctionNode | None = None
    """The decorated function; None for a `register()` call."""

    @property
    def line(self) -> int:
        return self.node.lineno


class SourceFile(msgspec.Struct):
    """The parts of a module that the rules ask for."""

    tree: ast.Module
    functions: dict[str, FunctionNode] = msgspec.field(default_factory=dict)
    constants: dict[str, ast.expr] = msgspec.field(default_factory=dict)
    registrations: list[Registration] = msgspec.field(default_factory=list)
    registers_at_top: bool = False

    def value(self, node: ast.expr | None) -> Any:
        """The value of a literal or of a top-level name for one; UNKNOWN for everything else."""
        if node is None:
            return UNKNOWN
        try:
            return ast.literal_eval(_Names(self.constants).visit(_copy(node)))
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return UNKNOWN

    def callable_of(self, node: ast.expr | None) -> Callable_ | None:
        """The function that an expression names, if it stands in this file."""
        if isinstance(node, ast.Name):
            named = self.constants.get(node.id)
            return self.functions.get(node.id) or (named if isinstance(named, ast.Lambda) else None)
        return node if isinstance(node, ast.Lambda) else None

    def is_coroutine(self, node: ast.AST | None, seen: frozenset[str] = frozenset()) -> bool | None:
        """Whether calling this function, or evaluating this expression, gives something to await; None: unclear."""
        if isinstance(node, ast.AsyncFunctionDef):
            return True
        if isinstance(node, ast.Lambda):
            return self.is_coroutine(node.body, seen)
        if isinstance(node, ast.FunctionDef):
            kinds = {self.is_coroutine(value, seen) for value in returned(node) if value is not None}
            return True if True in kinds else None if None in kinds else False
        if isinstance(node, ast.Constant | ast.Dict | ast.List | ast.JoinedStr):
            return False
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            target = self.functions.get(name) if isinstance(node.func, ast.Name) else None
            if target is not None and name not in seen:
                return self.is_coroutine(target, seen | {name})
            return False if name in _TEXT_MAKERS and target is None else None
        return None


def read_source(text: str) -> SourceFile:
    """The file's registrations and top-level names; raises SyntaxError where it cannot be read."""
    source = SourceFile(ast.parse(text))
    for statement in source.tree.body:
        if isinstance(statement, FunctionNode):
            source.functions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            source.constants[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            source.constants[statement.target.id] = statement.value
    for node in ast.walk(source.tree):
        registration = _registration(node)
        if registration is not None:
            source.registrations.append(registration)
    top = {id(s.value) if isinstance(s, ast.Expr) else id(s) for s in source.tree.body}
    source.registers_at_top = any(id(found.node) in top for found in source.registrations)
    return source


def _registration(node: ast.AST) -> Registration | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register":
        if last_name(node.func.value) != "registry":
            return None
        options = dict(zip(_REGISTER_ORDER, node.args, strict=False))
        return Registration(node, options | _keywords(node))
    if isinstance(node, FunctionNode):
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            if last_name(call.func if call else decorator) == "tool":
                return Registration(node, _keywords(call) if call else {}, function=node)
    return None


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`, or "" for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as text; "" for what is no dotted name."""
    if isinstance(node, ast.Attribute):
        base = dotted_name(node.value)
        return f"{base}.{node.attr}" if base else ""
    return node.id if isinstance(node, ast.Name) else ""


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function, without those of functions inside it."""
    for child in ast.iter_child_nodes(function):
        yield child
        if not isinstance(child, FunctionNode | ast.Lambda | ast.ClassDef):
            yield from own_nodes(child)


def returned(function: FunctionNode) -> list[ast.expr | None]:
    """What the `return` statements of a function give back; None for a bare one."""
    return [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]


def _copy(node: ast.expr) -> ast.expr:
    # A transformer changes nodes in place; the tree is read again by other rules.
    return ast.parse(ast.unparse(node), mode="eval").body


class _Names(ast.NodeTransformer):
    """Puts the value of top-level names in their place."""

    def __init__(self, constants: dict[str, ast.expr], seen: frozenset[str] = frozenset()) -> None:
        self._constants = constants
        self._seen = seen

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._constants.get(node.id)
        if value is None or node.id in self._seen:
            return node
        replaced: ast.AST = _Names(self._constants, self._seen | {node.id}).visit(_copy(value))
        return replaced
