"""Checks tools against the author checklist: name, texts, JSON Schema, requirements, and the code of the file."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsonschema_rs

import toolcrib.registry.lint_code as lint_code
from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.core.types import JsonObject, ToolEntry
from toolcrib.registry.lint_code import UNKNOWN, FunctionNode, LintFinding, Registration, SourceFile, read_source
from toolcrib.registry.schema_repair import repair
from toolcrib.registry.signature import parse_docstring

NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def check_name(name: Any, line: int | None) -> Iterator[LintFinding]:
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        message = f"model providers reject the tool name {name!r}; use 1 to 64 letters, digits, `_` or `-`"
        yield LintFinding("error", "name", message, line)


def check_description(name: str, description: Any, line: int | None) -> Iterator[LintFinding]:
    if not isinstance(description, str) or not description.strip():
        message = f"tool {name!r} has no description; say in one sentence what it does and when to use it"
        yield LintFinding("error", "description", message, line)


def check_requirements(
    name: str, requires_env: Sequence[str], has_check: bool, line: int | None
) -> Iterator[LintFinding]:
    if requires_env and not has_check:
        keys = ", ".join(requires_env)
        message = f"tool {name!r} requires {keys} but has no check_fn; add one that returns bool(os.getenv(...))"
        yield LintFinding("warning", "check-fn", message, line)


def check_parameters(name: str, parameters: Any, line: int | None) -> Iterator[LintFinding]:
    """The rules for the JSON Schema of a tool's arguments."""
    if not isinstance(parameters, dict):
        message = f"parameters of tool {name!r} are {parameters!r}; write a JSON Schema of type object"
        yield LintFinding("error", "schema", message, line)
        return
    if parameters.get("type") != "object":
        message = f'parameters of tool {name!r} have type {parameters.get("type")!r}; write "type": "object"'
        yield LintFinding("error", "schema", message, line)
    problem = _schema_problem(parameters)
    if problem:
        repairs = repair(parameters, lambda schema: not _schema_problem(schema)).changes
        found = "; ".join(repairs) or problem
        message = f"parameters of tool {name!r} are not a valid JSON Schema: {found}; correct each of them"
        yield LintFinding("error", "schema", message, line)
        return
    properties = parameters.get("properties", {})
    for missing in [field for field in parameters.get("required", ()) if field not in properties]:
        message = f"tool {name!r} requires {missing!r}, which is not one of its properties; add it there or drop it"
        yield LintFinding("error", "required", message, line)
    for field, schema in properties.items():
        yield from _check_property(name, field, schema, parameters, line)


def check_parameter_description(name: str, parameter: str, text: Any, line: int | None) -> Iterator[LintFinding]:
    if not str(text or "").strip():
        message = f"parameter {parameter!r} of tool {name!r} has no description; describe the value, with an example"
        yield LintFinding("warning", "parameter-description", message, line)


def _check_property(name: str, field: str, schema: Any, root: JsonObject, line: int | None) -> Iterator[LintFinding]:
    if not isinstance(schema, dict):
        return
    yield from check_parameter_description(name, field, schema.get("description"), line)
    definitions: JsonObject = {key: root[key] for key in ("$defs", "definitions") if key in root}
    if "default" in schema and not jsonschema_rs.is_valid({**definitions, **schema}, schema["default"]):
        message = (
            f"default {schema['default']!r} of parameter {field!r} of tool {name!r} does not match its own schema; "
            "change the default or the type"
        )
        yield LintFinding("error", "default", message, line)


def _schema_problem(schema: JsonObject) -> str:
    try:
        jsonschema_rs.validator_for(schema, retriever=_refuse_to_fetch)
    except (jsonschema_rs.ReferencingError, ValueError, TypeError, RecursionError) as error:
        return str(getattr(error, "message", error)).splitlines()[0]
    return ""


def _refuse_to_fetch(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema, and toolcrib never fetches references")


__all__ = ["LintFinding", "lint_entry", "lint_source"]


def lint_source(path: Path | str, known_variables: Collection[str] | None = None) -> list[LintFinding]:
    """What to change in a tool file, in line order. The file is parsed, never run.

    `known_variables` are the keys that the setup wizard asks for; by default those of OPTIONAL_ENV_VARS.
    """
    known = OPTIONAL_ENV_VARS if known_variables is None else known_variables
    try:
        source = read_source(Path(path).read_text(encoding="utf-8-sig"))
    except SyntaxError as error:
        return [
            LintFinding("error", "parses", f"Python cannot read the file: {error.msg}; correct this line", error.lineno)
        ]
    except (UnicodeDecodeError, ValueError) as error:
        return [LintFinding("error", "parses", f"Python cannot read the file: {error}; save it as UTF-8 text", None)]
    findings = [
        *_check_registers(source),
        *(finding for found in source.registrations for finding in _check_registration(source, found)),
        *lint_code.check_prints(source),
        *lint_code.check_variables(source, known),
    ]
    return sorted(dict.fromkeys(findings), key=lambda finding: finding.line or 0)


def lint_entry(entry: ToolEntry, source_text: str) -> list[LintFinding]:
    """What to change in a registered tool; `source_text` is the text of its file, for line numbers.

    Findings that `lint_source` also reports are equal to these, so you can merge both lists as a set.
    """
    line = _line_of(entry.name, source_text)
    found = [
        *check_name(entry.name, line),
        *check_description(entry.name, entry.description or entry.schema.get("description"), line),
        *check_parameters(entry.name, entry.schema.get("parameters"), line),
        *check_requirements(entry.name, entry.requires_env, entry.check_fn is not None, line),
    ]
    if not _accepts_contract_call(entry):
        found.append(lint_code.handler_signature_finding(entry.name, line))
    if inspect.iscoroutinefunction(entry.handler) and not entry.is_async:
        found.append(lint_code.async_finding(entry.name, False, line))
    return found


def _check_registers(source: SourceFile) -> Iterator[LintFinding]:
    if not source.registers_at_top:
        message = (
            "the file has no top-level `registry.register(...)` and no top-level function under `@tool`, "
            "so discovery skips it; add one, not indented"
        )
        yield LintFinding("error", "registers", message, None)


def _check_registration(source: SourceFile, found: Registration) -> Iterator[LintFinding]:
    given_name = source.value(found.options.get("name"))
    if found.function is not None and "name" not in found.options:
        given_name = found.function.name
    name = given_name if isinstance(given_name, str) else "?"
    if given_name is not UNKNOWN:
        yield from check_name(given_name, found.line)
    if found.function is None:
        yield from _check_schema(source, found, name)
        yield from lint_code.check_handler(source, found, name)
    else:
        yield from _check_tool_function(source, found, found.function, name)
    keys = source.value(found.options.get("requires_env"))
    if isinstance(keys, list | tuple) and all(isinstance(key, str) for key in keys):
        has_check = source.value(found.options.get("check_fn", ast.Constant(None))) is not None
        yield from check_requirements(name, keys, has_check, found.line)
    yield from lint_code.check_check_fn(source, found, name)


def _check_schema(source: SourceFile, found: Registration, name: str) -> Iterator[LintFinding]:
    schema = source.value(found.options.get("schema"))
    if schema is UNKNOWN:
        return
    if not isinstance(schema, dict):
        message = f"schema of tool {name!r} is {schema!r}; write a dict with `description` and `parameters`"
        yield LintFinding("error", "schema", message, found.line)
        return
    if "description" not in found.options or not schema.get("description"):
        given = source.value(found.options.get("description"))
        description = schema.get("description") if given is UNKNOWN else given
        if "description" not in found.options or given is not UNKNOWN:
            yield from check_description(name, description, found.line)
    if schema.get("parameters") is not None:
        yield from check_parameters(name, schema["parameters"], found.line)


def _check_tool_function(
    source: SourceFile, found: Registration, function: FunctionNode, name: str
) -> Iterator[LintFinding]:
    docs = parse_docstring(ast.get_docstring(function))
    given = source.value(found.options["description"]) if "description" in found.options else docs.summary
    if given is not UNKNOWN:
        yield from check_description(name, given, found.line)
    for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        if argument.arg == "ctx":
            continue
        if argument.annotation is None:
            message = f"parameter {argument.arg!r} of tool {name!r} has no type hint; add one so that calls are checked"
            yield LintFinding("warning", "type-hint", message, found.line)
        if argument.arg not in docs.parameters and "Annotated" not in ast.unparse(argument):
            yield from check_parameter_description(name, argument.arg, "", found.line)


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
