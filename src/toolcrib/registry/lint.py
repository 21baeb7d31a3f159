"""The checklist for authors of tool files: what `toolcrib tools lint FILE` says."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Collection, Iterator
from pathlib import Path

import toolcrib.registry.lint_code as lint_code
import toolcrib.registry.lint_declaration as lint_declaration
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.types import ToolEntry
from toolcrib.registry.docstring import parse_docstring
from toolcrib.registry.lint_declaration import Finding
from toolcrib.registry.lint_source import UNKNOWN, FunctionNode, Registration, SourceFile, read_source

__all__ = ["Finding", "lint_entry", "lint_source"]


def lint_source(path: Path | str, known_variables: Collection[str] | None = None) -> list[Finding]:
    """What to change in a tool file, in the order of its lines. The file is read, never run.

    `known_variables` are the keys that the set-up wizard asks for; by default those of OPTIONAL_ENV_VARS.
    """
    known = OPTIONAL_ENV_VARS if known_variables is None else known_variables
    try:
        source = read_source(Path(path).read_text(encoding="utf-8-sig"))
    except SyntaxError as error:
        return [
            Finding("error", "parses", f"Python cannot read the file: {error.msg}; correct this line", error.lineno)
        ]
    except (UnicodeDecodeError, ValueError) as error:
        return [Finding("error", "parses", f"Python cannot read the file: {error}; save it as UTF-8 text", None)]
    findings = [
        *_check_registers(source),
        *(finding for found in source.registrations for finding in _check_registration(source, found)),
        *lint_code.check_prints(source),
        *lint_code.check_variables(source, known),
    ]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line or 0)


def lint_entry(entry: ToolEntry, source_text: str) -> list[Finding]:
    """What to change in a tool as it was registered; `source_text` is its file, for the line numbers.

    A finding that `lint_source` has too is equal to it, so both lists can be merged as a set.
    """
    line = _line_of(entry.name, source_text)
    found = [
        *lint_declaration.check_name(entry.name, line),
        *lint_declaration.check_description(entry.name, entry.description or entry.schema.get("description"), line),
        *lint_declaration.check_parameters(entry.name, entry.schema.get("parameters"), line),
        *lint_declaration.check_requirements(entry.name, entry.requires_env, entry.check_fn is not None, line),
    ]
    if not _accepts_contract_call(entry):
        found.append(lint_code.handler_signature_finding(entry.name, line))
    if inspect.iscoroutinefunction(entry.handler) and not entry.is_async:
        found.append(lint_code.async_finding(entry.name, False, line))
    return found


def _check_registers(source: SourceFile) -> Iterator[Finding]:
    if not source.registers_at_top:
        message = (
            "the file has no top-level `registry.register(...)` and no top-level function under `@tool`, "
            "so discovery passes it by; add one, not indented"
        )
        yield Finding("error", "registers", message, None)


def _check_registration(source: SourceFile, found: Registration) -> Iterator[Finding]:
    given_name = source.value(found.options.get("name"))
    if found.function is not None and "name" not in found.options:
        given_name = found.function.name
    name = given_name if isinstance(given_name, str) else "?"
    if given_name is not UNKNOWN:
        yield from lint_declaration.check_name(given_name, found.line)
    if found.function is None:
        yield from _check_schema(source, found, name)
        yield from lint_code.check_handler(source, found, name)
    else:
        yield from _check_tool_function(source, found, found.function, name)
    keys = source.value(found.options.get("requires_env"))
    if isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys):
        has_check = source.value(found.options.get("check_fn", ast.Constant(None))) is not None
        yield from lint_declaration.check_requirements(name, keys, has_check, found.line)
    yield from lint_code.check_check_fn(source, found, name)


def _check_schema(source: SourceFile, found: Registration, name: str) -> Iterator[Finding]:
    schema = source.value(found.options.get("schema"))
    if schema is UNKNOWN:
        return
    if not isinstance(schema, dict):
        message = f"schema of tool {name!r} is {schema!r}; write a dict with `description` and `parameters`"
        yield Finding("error", "schema", message, found.line)
        return
    if "description" not in found.options or not schema.get("description"):
        given = source.value(found.options.get("description"))
        description = schema.get("description") if given is UNKNOWN else given
        if "description" not in found.options or given is not UNKNOWN:
            yield from lint_declaration.check_description(name, description, found.line)
    if schema.get("parameters") is not None:
        yield from lint_declaration.check_parameters(name, schema["parameters"], found.line)


def _check_tool_function(
    source: SourceFile, found: Registration, function: FunctionNode, name: str
) -> Iterator[Finding]:
    docs = parse_docstring(ast.get_docstring(function))
    given = source.value(found.options["description"]) if "description" in found.options else docs.summary
    if given is not UNKNOWN:
        yield from lint_declaration.check_description(name, given, found.line)
    for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        if argument.arg == "ctx":
            continue
        if argument.annotation is None:
            message = (
                f"parameter {argument.arg!r} of tool {name!r} has no type hint; add one, so that calls are checked"
            )
            yield Finding("warning", "type-hint", message, found.line)
        if argument.arg not in docs.parameters and "Annotated" not in ast.unparse(argument):
            yield from lint_declaration.check_parameter_description(name, argument.arg, "", found.line)


def _line_of(name: str, source_text: str) -> int | None:
    try:
        source = read_source(source_text)
    except (SyntaxError, ValueError):
        return None
    for found in source.registrations:
        given = found.options.get("name")
        own = found.function.name if found.function is not None and given is None else source.value(given)
        if own == name:
            return found.line
    return None


def _accepts_contract_call(entry: ToolEntry) -> bool:
    try:
        signature = inspect.signature(entry.handler, follow_wrapped=False)
    except (TypeError, ValueError):
        return True  # Builtins that hide their signature get the benefit of the doubt.
    try:
        signature.bind({}, task_id="", session_id="", **({"ctx": None} if entry.takes_context else {}))
    except TypeError:
        return False
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
