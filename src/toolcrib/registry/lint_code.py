"""What a tool file's code does, held against the checklist for authors, without running it."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from toolcrib.registry.lint_declaration import Finding
from toolcrib.registry.lint_source import (
    UNKNOWN,
    Callable_,
    FunctionNode,
    Registration,
    SourceFile,
    dotted_name,
    last_name,
    own_nodes,
    returned,
)

_SLOW = re.compile(r"(requests|httpx|aiohttp|urllib|subprocess|socket)\.|(time\.)?sleep$|os\.(system|popen)$|urlopen$")
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD)(_|$)")
_SYSTEM_VARIABLE = re.compile(
    r"(HOME|PATH|USER|LOGNAME|SHELL|LANG|TERM|PWD|TMPDIR|TEMP|TMP|EDITOR|DISPLAY|HOSTNAME|NO_COLOR|CI"
    r"|(XDG|LC|TOOLCRIB|HERMES|TERMINAL|PYTHON)_\w+)$"
)
_RAW_VALUES = (ast.Dict, ast.List, ast.Set, ast.Tuple, ast.DictComp, ast.ListComp, ast.SetComp, ast.GeneratorExp)


def check_handler(source: SourceFile, registration: Registration, name: str) -> Iterator[Finding]:
    """The rules for the function behind a `register()` call."""
    handler = source.callable_of(registration.options.get("handler"))
    if handler is None:
        return
    yield from _check_signature(handler, name)
    yield from _check_async(source, registration, handler, name)
    seen: set[int] = set()
    yield from _check_results(source, handler, name, seen)


def _check_signature(handler: Callable_, name: str) -> Iterator[Finding]:
    positional = [*handler.args.posonlyargs, *handler.args.args]
    required = len(positional) - len(handler.args.defaults)
    takes_args = (bool(positional) and required <= 1) or (handler.args.vararg is not None and not positional)
    if handler.args.kwarg is None or not takes_args:
        yield handler_signature_finding(name, handler.lineno)


def handler_signature_finding(name: str, line: int | None) -> Finding:
    message = (
        f"the handler of tool {name!r} cannot be called as handler(args, task_id=..., ...); "
        "write `def handler(args, **kwargs)` and take the values out of `args`"
    )
    return Finding("error", "handler-signature", message, line)


def async_finding(name: str, is_async: bool, line: int | None) -> Finding:
    message = (
        f"tool {name!r} is registered with is_async=True, but its handler gives nothing to await; drop is_async"
        if is_async
        else f"the handler of tool {name!r} is a coroutine function; register it with is_async=True"
    )
    return Finding("error", "is-async", message, line)


def _check_async(source: SourceFile, registration: Registration, handler: Callable_, name: str) -> Iterator[Finding]:
    given = registration.options.get("is_async")
    is_async = False if given is None else source.value(given)
    found = source.is_coroutine(handler)
    if is_async is not UNKNOWN and found is not None and bool(is_async) != found:
        yield async_finding(name, bool(is_async), registration.line)


def _check_results(source: SourceFile, handler: Callable_, name: str, seen: set[int]) -> Iterator[Finding]:
    """Raw values and exceptions in the handler and in the functions of this file whose result it hands on."""
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
) -> Iterator[Finding]:
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


def _raw_result(name: str, what: str, line: int) -> Finding:
    message = f"the handler of tool {name!r} returns {what}; the result must be text: return json.dumps(...)"
    return Finding("error", "returns-json", message, line)


def _assigned(handler: Callable_, name: str) -> ast.expr | None:
    """The one value that a local name is given, if it is given only one."""
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


def _check_raises(handler: FunctionNode, name: str) -> Iterator[Finding]:
    for node in _uncaught_raises(handler):
        message = (
            f"the handler of tool {name!r} raises; the model learns more from an answer: "
            'return json.dumps({"error": "what happened and what to try"})'
        )
        yield Finding("warning", "raises", message, node.lineno)


def _uncaught_raises(node: ast.AST) -> Iterator[ast.Raise]:
    """The raise statements that no `except` of the same function stands around."""
    if isinstance(node, ast.Raise):
        yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Try) and node.handlers:
        children = [*node.handlers, *node.orelse, *node.finalbody]
    for child in children:
        if not isinstance(child, FunctionNode | ast.Lambda | ast.ClassDef):
            yield from _uncaught_raises(child)


def check_check_fn(source: SourceFile, registration: Registration, name: str) -> Iterator[Finding]:
    check = source.callable_of(registration.options.get("check_fn"))
    if check is None:
        return
    for node in ast.walk(check):
        if isinstance(node, ast.Call) and _SLOW.match(dotted_name(node.func)):
            message = (
                f"check_fn of tool {name!r} calls {dotted_name(node.func)}(), and it runs at every build of the "
                "definitions; only look at keys, imports and shutil.which() there"
            )
            yield Finding("warning", "slow-check", message, node.lineno)


def check_prints(source: SourceFile) -> Iterator[Finding]:
    guarded = {
        id(inner) for statement in source.tree.body if _is_main_guard(statement) for inner in ast.walk(statement)
    }
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call) or dotted_name(node.func) != "print" or id(node) in guarded:
            continue
        if not any(keyword.arg == "file" for keyword in node.keywords):
            message = "print() writes to stdout, which belongs to the protocol; use logging, or return the text"
            yield Finding("warning", "print", message, node.lineno)


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def check_variables(source: SourceFile, known: Collection[str]) -> Iterator[Finding]:
    """Environment variables that the file reads, against `requires_env` and the set-up wizard's list."""
    declared = [source.value(found.options.get("requires_env")) for found in source.registrations]
    required = {key for keys in declared if isinstance(keys, list | tuple | set) for key in keys}
    in_wizard = {*known, *_wizard_additions(source)}
    reported: set[str] = set()
    for key, line in _variables_read(source):
        if key in reported or _SYSTEM_VARIABLE.match(key):
            continue
        reported.add(key)
        if key not in required:
            message = f"the file reads {key!r}, but no tool names it; add requires_env=[{key!r}] so that people see it"
            yield Finding("warning", "requires-env", message, line)
        if _SECRET.search(key) and key not in in_wizard:
            message = (
                f"{key!r} is unknown to the set-up wizard; add OPTIONAL_ENV_VARS[{key!r}] = "
                '{"description": ..., "prompt": ..., "url": ..., "tools": [...], "password": True}'
            )
            yield Finding("warning", "setup-wizard", message, line)


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
