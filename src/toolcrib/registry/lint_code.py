"""Checks the code of a tool file against the author checklist, without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

import msgspec

_SLOW = re.compile(r"(requests|httpx|aiohttp|urllib|subprocess|socket)\.|(time\.)?sleep$|os\.(system|popen)$|urlopen$")
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)(_|$)")
_SYSTEM_VARIABLE = re.compile(
    r"(HOME|PATH|USER|LOGNAME|SHELL|LANG|TERM|PWD|TMPDIR|TEMP|TMP|EDITOR|DISPLAY|HOSTNAME|NO_COLOR|CI"
    r"|(XDG|LC|TOOLCRIB|HERMES|TERMINAL|PYTHON)_\w+)$"
)
_RAW_VALUES = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def check_handler(source: SourceFile, registration: Registration, name: str) -> Iterator[LintFinding]:
    """The rules for the function behind a `register()` call."""
    handler = source.callable_of(registration.options.get("handler"))
    if handler is None:
        return
    yield from _check_signature(handler, name)
    yield from _check_async(source, registration, handler, name)
    seen: set[int] = set()
    yield from _check_results(source, handler, name, seen)


def _check_signature(handler: Callable_, name: str) -> Iterator[LintFinding]:
    positional = [*handler.args.posonlyargs, *handler.args.args]
    required = len(positional) - len(handler.args.defaults)
    takes_args = (bool(positional) and required <= 1) or (handler.args.vararg is not None and not positional)
    if handler.args.kwarg is None or not takes_args:
        yield handler_signature_finding(name, handler.lineno)


def handler_signature_finding(name: str, line: int | None) -> LintFinding:
    message = (
        f"the handler of tool {name!r} cannot be called as handler(args, task_id=..., ...); "
        "write `def handler(args, **kwargs)` and take the values out of `args`"
    )
    return LintFinding("error", "handler-signature", message, line)


def async_finding(name: str, is_async: bool, line: int | None) -> LintFinding:
    message = (
        f"tool {name!r} is registered with is_async=True, but its handler returns nothing to await; drop is_async"
        if is_async
        else f"the handler of tool {name!r} is a coroutine function; register it with is_async=True"
    )
    return LintFinding("error", "is-async", message, line)


def _check_async(
    source: SourceFile, registration: Registration, handler: Callable_, name: str
) -> Iterator[LintFinding]:
    given = registration.options.get("is_async")
    is_async = False if given is None else source.value(given)
    found = source.is_coroutine(handler)
    if is_async is not UNKNOWN and found is not None and bool(is_async) != found:
        yield async_finding(name, bool(is_async), registration.line)


def _check_results(source: SourceFile, handler: Callable_, name: str, seen: set[int]) -> Iterator[LintFinding]:
    """Raw values and exceptions in the handler and in the functions of this file whose results it returns."""
    if id(handler) in seen:
        return
    seen.add(id(handler))
    if isinstance(handler, ast.Lambda):
        values: list[ast.expr | None] = [handler.body]
    else:
        values = returned(handler)
        yield from _check_raises(handler, name)
        is_stub = any(isinstance(node, ast.Raise | ast.Yield | ast.YieldFrom) for node in own_nodes(handler))
        if not values and not is_stub:
            yield _raw_result(name, "None, because it never returns", handler.lineno)
    for value in values:
        yield from _check_value(source, handler, value, name, seen)


def _check_value(
    source: SourceFile, handler: Callable_, value: ast.expr | None, name: str, seen: set[int]
) -> Iterator[LintFinding]:
    if isinstance(value, ast.Await):
        value = value.value
    if isinstance(value, ast.IfExp):
        yield from _check_value(source, handler, value.body, name, seen)
        yield from _check_value(source, handler, value.orelse, name, seen)
        return
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in source.functions:
        yield from _check_results(source, source.functions[value.func.id], name, seen)
        return
    bare = _assigned(handler, value.id) if isinstance(value, ast.Name) else value
    line = value.lineno if value is not None else handler.lineno
    if value is None or (isinstance(bare, ast.Constant) and not isinstance(bare.value, str)):
        yield _raw_result(name, "None" if value is None else ast.unparse(value), line)
    elif isinstance(bare, _RAW_VALUES) and not _is_multimodal(bare):
        yield _raw_result(name, f"a {type(bare).__name__.lower()}", line)


def _raw_result(name: str, what: str, line: int) -> LintFinding:
    message = f"the handler of tool {name!r} returns {what}; the result must be text: return json.dumps(...)"
    return LintFinding("error", "returns-json", message, line)


def _assigned(handler: Callable_, name: str) -> ast.expr | None:
    """The value of a local name, if it is assigned only once."""
    targets = [node for node in own_nodes(handler) if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)]
    values = [node.value for node in targets if any(_names(target, name) for target in _targets(node))]
    return values[0] if len(values) == 1 else None


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _names(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _is_multimodal(node: ast.expr) -> bool:
    keys = node.keys if isinstance(node, ast.Dict) else []
    return any(isinstance(key, ast.Constant) and key.value == "_multimodal" for key in keys)


def _check_raises(handler: FunctionNode, name: str) -> Iterator[LintFinding]:
    for node in _uncaught_raises(handler):
        message = (
            f"the handler of tool {name!r} raises; an error result tells the model more: "
            'return json.dumps({"error": "what happened and what to try"})'
        )
        yield LintFinding("warning", "raises", message, node.lineno)


def _uncaught_raises(node: ast.AST) -> Iterator[ast.Raise]:
    """The raise statements that no `try` of the same function covers."""
    if isinstance(node, ast.Raise):
        yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Try) and node.handlers:
        children = [*node.handlers, *node.orelse, *node.finalbody]
    for child in children:
        if not isinstance(child, FunctionNode | ast.Lambda | ast.ClassDef):
            yield from _uncaught_raises(child)


def check_check_fn(source: SourceFile, registration: Registration, name: str) -> Iterator[LintFinding]:
    check = source.callable_of(registration.options.get("check_fn"))
    if check is None:
        return
    for node in ast.walk(check):
        if isinstance(node, ast.Call) and _SLOW.match(dotted_name(node.func)):
            message = (
                f"check_fn of tool {name!r} calls {dotted_name(node.func)}(), and it runs at every build of the "
                "definitions; only check keys, imports and shutil.which() there"
            )
            yield LintFinding("warning", "slow-check", message, node.lineno)


def check_prints(source: SourceFile) -> Iterator[LintFinding]:
    guarded = {
        id(inner) for statement in source.tree.body if _is_main_guard(statement) for inner in ast.walk(statement)
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or dotted_name(node.func) != "print" or id(node) in guarded:
            continue
        if not any(keyword.arg == "file" for keyword in node.keywords):
            message = "print() writes to stdout, which is reserved for the protocol; use logging, or return the text"
            yield LintFinding("warning", "print", message, node.lineno)


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def check_variables(source: SourceFile, known: Collection[str]) -> Iterator[LintFinding]:
    """Compares the environment variables that the file reads with `requires_env` and the setup wizard's list."""
    declared = [source.value(found.options.get("requires_env")) for found in source.registrations]
    required = {key for keys in declared if isinstance(keys, list | tuple | set) for key in keys}
    in_wizard = {*known, *_wizard_additions(source)}
    reported: set[str] = set()
    for key, line in _variables_read(source):
        if key in reported or _SYSTEM_VARIABLE.match(key):
            continue
        reported.add(key)
        if key not in required:
            message = f"the file reads {key!r}, but no tool declares it; add requires_env=[{key!r}]"
            yield LintFinding("warning", "requires-env", message, line)
        if _SECRET.search(key) and key not in in_wizard:
            message = (
                f"{key!r} is unknown to the setup wizard; add OPTIONAL_ENV_VARS[{key!r}] = "
                '{"description": ..., "prompt": ..., "url": ..., "tools": [...], "password": True}'
            )
            yield LintFinding("warning", "setup-wizard", message, line)


def _variables_read(source: SourceFile) -> Iterator[tuple[str, int]]:
    for node in ast.walk(source.tree):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and last_name(node.value) == "environ":
            key = node.slice
        elif isinstance(node, ast.Call) and node.args:
            called = dotted_name(node.func)
            if called.endswith(("environ.get", "getenv")):
                key = node.args[0]
        name = source.value(key)
        if key is not None and isinstance(name, str):
            yield name, key.lineno


def _wizard_additions(source: SourceFile) -> Iterator[str]:
    """The keys that the file itself adds to OPTIONAL_ENV_VARS."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Subscript) and last_name(node.value) == "OPTIONAL_ENV_VARS":
            key = source.value(node.slice)
            if isinstance(key, str):
                yield key
        elif isinstance(node, ast.Call) and dotted_name(node.func).endswith("OPTIONAL_ENV_VARS.update"):
            for argument in node.args:
                keys = argument.keys if isinstance(argument, ast.Dict) else []
                yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Callable_ = FunctionNode | ast.Lambda

UNKNOWN: Any = object()
"""A value that is known only at run time."""

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
    """The parts of a module that the rules check."""

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
        """The function that an expression names, if this file defines it."""
        if isinstance(node, ast.Name):
            named = self.constants.get(node.id)
            return self.functions.get(node.id) or (named if isinstance(named, ast.Lambda) else None)
        return node if isinstance(node, ast.Lambda) else None

    def is_coroutine(self, node: ast.AST | None, seen: frozenset[str] = frozenset()) -> bool | None:
        """Whether calling this function, or evaluating this expression, returns an awaitable; None if unclear."""
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
    """The file's registrations and top-level names; raises SyntaxError if it cannot be parsed."""
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
    """`c` of `a.b.c`, or "" if it is not a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` as text; "" if it is not a dotted name."""
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
    """The values of a function's `return` statements; None for a bare one."""
    return [node.value for node in own_nodes(function) if isinstance(node, ast.Return)]


def _copy(node: ast.expr) -> ast.expr:
    # A transformer changes nodes in place, and other rules read the tree again.
    return ast.parse(ast.unparse(node), mode="eval").body


class _Names(ast.NodeTransformer):
    """Replaces top-level names with their values."""

    def __init__(self, constants: dict[str, ast.expr], seen: frozenset[str] = frozenset()) -> None:
        self._constants = constants
        self._seen = seen

    def visit_Name(self, node: ast.Name) -> ast.AST:
        value = self._constants.get(node.id)
        if value is None or node.id in self._seen:
            return node
        replaced: ast.AST = _Names(self._constants, self._seen | {node.id}).visit(_copy(value))
        return replaced


class LintFinding(msgspec.Struct, frozen=True):
    """One thing to change. An error keeps the tool from working; a warning does not."""

    severity: Literal["error", "warning"]
    rule: str
    message: str
    line: int | None = None
