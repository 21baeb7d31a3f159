"""The `@tool` decorator, and the adapter between `handler(args, **kwargs)` and a plain function.

The adapter passes typed arguments in and returns JSON text.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, overload

import msgspec

from toolcrib.core.errors import RegistrationError, UsageError
from toolcrib.core.origins import OriginDeclaration
from toolcrib.core.types import CheckFn, EffectsDeclaration, Handler, JsonObject, SchemaOverrides, ToolResult
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.pydantic_types import PydanticAdapter, default_in, is_pydantic_class
from toolcrib.registry.registration import current_loading
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.results import is_multimodal, tool_error
from toolcrib.registry.signature import Parameter, Signature, encode_custom, read_signature

Convert = Callable[[Any], Any]
Converters = tuple[tuple[str, type | None, Convert], ...]
"""Name, the type that needs no conversion (None: every value needs it), and the conversion."""

_MISSING = object()


class BadArgument(Exception):
    """An argument that does not fit the parameter's type."""


def make_handler(function: Callable[..., Any], signature: Signature, name: str) -> Handler:
    """A handler with the contract's signature; it has a `ctx` parameter only if the function does."""
    prepare = _preparer(signature)
    if gives_coroutine(function):
        handler: Any = _async_handler(function, signature, prepare, name)
    else:
        handler = _sync_handler(function, signature, prepare, name)
    # `__wrapped__` shows who really made this handler: the function's module, not this one.
    handler.__wrapped__ = function
    handler.__name__ = function.__name__
    handler.__qualname__ = function.__qualname__
    handler.__module__ = function.__module__
    handler.__doc__ = function.__doc__
    adapted: Handler = handler
    return adapted


def gives_coroutine(function: Callable[..., Any]) -> bool:
    """Whether it is an `async def`, even behind decorators that return a plain function."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(inspect.unwrap(function))


Prepare = Callable[[JsonObject], JsonObject]


def _sync_handler(function: Callable[..., Any], signature: Signature, prepare: Prepare | None, name: str) -> Any:
    def plain(args: JsonObject, **kwargs: Any) -> str | JsonObject | ToolResult:  # noqa: ARG001 - the contract's signature
        try:
            arguments = args if prepare is None else prepare(args)
        except BadArgument as error:
            return tool_error(f"{name}: {error}")
        result = function(**arguments)
        return result if type(result) is str else encode_result(result, name)

    if signature.context is None:
        return plain
    with_context = _context_adder(signature.context, name)

    def contextual(args: JsonObject, ctx: Any = None, **kwargs: Any) -> str | JsonObject | ToolResult:  # noqa: ARG001
        try:
            arguments = args if prepare is None else prepare(args)
        except BadArgument as error:
            return tool_error(f"{name}: {error}")
        result = function(**with_context(arguments, ctx))
        return result if type(result) is str else encode_result(result, name)

    return contextual


def _async_handler(function: Callable[..., Any], signature: Signature, prepare: Prepare | None, name: str) -> Any:
    async def plain(args: JsonObject, **kwargs: Any) -> str | JsonObject | ToolResult:  # noqa: ARG001 - the contract's signature
        try:
            arguments = args if prepare is None else prepare(args)
        except BadArgument as error:
            return tool_error(f"{name}: {error}")
        result = function(**arguments)
        if inspect.isawaitable(result):  # A decorator may have awaited it already.
            result = await result
        return result if type(result) is str else encode_result(result, name)

    if signature.context is None:
        return plain
    with_context = _context_adder(signature.context, name)

    async def contextual(args: JsonObject, ctx: Any = None, **kwargs: Any) -> str | JsonObject | ToolResult:  # noqa: ARG001
        try:
            arguments = args if prepare is None else prepare(args)
        except BadArgument as error:
            return tool_error(f"{name}: {error}")
        result = function(**with_context(arguments, ctx))
        if inspect.isawaitable(result):
            result = await result
        return result if type(result) is str else encode_result(result, name)

    return contextual


def _context_adder(parameter: inspect.Parameter, name: str) -> Callable[[JsonObject, Any], JsonObject]:
    def add(arguments: JsonObject, ctx: Any) -> JsonObject:
        # The runtime's context comes last, so an argument of that name from a model never replaces it.
        if ctx is not None:
            return {**arguments, "ctx": ctx}
        if parameter.default is inspect.Parameter.empty:
            raise UsageError(f"{name!r} needs a ToolContext; call it with `await runtime.call({name!r}, ...)`")
        return {key: value for key, value in arguments.items() if key != "ctx"}

    return add


def _preparer(signature: Signature) -> Prepare | None:
    """Converts JSON arguments to those that the function expects; None if they are the same."""
    converters: Converters = tuple(
        (parameter.name, parameter.hint if parameter.hint in (int, float) else None, _converter(parameter))
        for parameter in signature.parameters
        if parameter.adapter or parameter.alternatives or not _is_json(parameter.hint)
    )
    # The default in a hint may come from a factory, so each call gets its own.
    filled = {one.name: functools.partial(default_in, one.hint) for one in signature.parameters if one.fills_default}
    if not converters:
        return None

    def prepare(args: JsonObject) -> JsonObject:
        missing = {name: default()[1] for name, default in filled.items() if name not in args}
        arguments = {**args, **missing} if missing else args
        for name, ready, convert in converters:
            value = args.get(name, _MISSING)
            if value is _MISSING or type(value) is ready:
                continue
            if arguments is args:
                arguments = dict(args)
            try:
                arguments[name] = convert(value)
            except (TypeError, ValueError) as error:
                raise BadArgument(f"argument {name!r}: {error}") from error
        return arguments

    return prepare


def _is_json(hint: Any) -> bool:
    """Whether the JSON value already has the hinted type."""
    if hint in (Any, str, bool, None, type(None), list, dict):
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return all(type(value) in (str, bool, type(None)) for value in args)
    if origin in (list, dict) or type(hint).__name__ == "UnionType" or origin is Union:
        return all(_is_json(arg) for arg in args)
    return False


def _converter(parameter: Parameter) -> Convert:
    if parameter.adapter is not None:
        return parameter.adapter.convert
    if not parameter.alternatives:
        return functools.partial(_converted, parameter.hint)
    members = [functools.partial(_converted, member) for member in parameter.alternatives]

    def first_that_fits(value: Any) -> Any:
        refusals: list[str] = []
        for convert in members:
            try:
                return convert(value)
            except (TypeError, ValueError) as error:
                refusals.append(str(error))
        raise ValueError("; ".join(refusals))

    return first_that_fits


def _converted(hint: Any, value: Any) -> Any:
    try:
        return _settled(msgspec.convert(value, hint, str_keys=True, dec_hook=_decode_custom))
    except msgspec.ValidationError:
        # JSON does not distinguish 3 from 3.0; msgspec does.
        whole = _with_whole_numbers(value)
        if repr(whole) == repr(value):
            raise
        return _settled(msgspec.convert(whole, hint, str_keys=True, dec_hook=_decode_custom))


def _settled(value: Any) -> Any:
    """The converted value, with dataclass defaults set on each instance; msgspec leaves them on the class."""
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _settled(item)
    elif isinstance(value, dict):
        _settled(list(value.values()))
    elif isinstance(value, msgspec.Struct):
        _settled([getattr(value, name) for name in value.__struct_fields__])
    elif hasattr(value, "__dataclass_fields__") and hasattr(value, "__dict__"):
        for name in [field.name for field in dataclasses.fields(value)]:
            if name not in value.__dict__ and hasattr(value, name):
                value.__dict__[name] = getattr(value, name)
            _settled(value.__dict__.get(name))
    return value


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    return value


def _decode_custom(kind: type, value: Any) -> Any:
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if is_pydantic_class(kind):
        return PydanticAdapter(kind).convert(value)
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def encode_result(value: Any, name: str) -> str | JsonObject | ToolResult:
    """The text for the model: a str unchanged, objects and lists as JSON, single values as `{"result": value}`."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return str(value)
    if is_multimodal(value):
        multimodal: JsonObject = value
        return multimodal
    if isinstance(value, ToolResult):
        return value
    if inspect.iscoroutine(value):
        value.close()  # Python would warn that it was never awaited.
    try:
        return _encode(value if type(value) in (dict, list) else _wrapped(_plain(value)))
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        # Non-string keys, NaN, and values without a JSON form: only the last is an error.
        return _encode_hard_case(value, name)


def _plain(value: Any) -> Any:
    """Converts a value that `json` does not support to one that it does."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encode_custom, order="deterministic")


def _wrapped(plain: Any) -> Any:
    return plain if isinstance(plain, (dict, list, tuple)) else {"result": plain}


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_plain).encode


def _encode_hard_case(value: Any, name: str) -> str:
    try:
        plain = json.loads(msgspec.json.encode(value, enc_hook=encode_custom))
        return _encode(_wrapped(plain))
    except (TypeError, ValueError, NotImplementedError, RecursionError) as error:
        kind = type(value).__name__
        return tool_error(
            f"{name} returned a value of type {kind} that has no JSON form ({error}); "
            "return a str, dict, list, number, dataclass or None",
            error_type="tool_result_contract",
            tool=name,
            result_type=kind,
        )


Function = TypeVar("Function", bound=Callable[..., Any])

DEFAULT_TOOLSET = "custom"


@overload
def tool(function: Function, /) -> Function: ...


@overload
def tool(
    *,
    name: str | None = None,
    toolset: str | None = None,
    description: str | None = None,
    emoji: str = "",
    check_fn: CheckFn | None = None,
    requires_env: Iterable[str] | None = None,
    effects: EffectsDeclaration | None = None,
    origin: OriginDeclaration = "",
    max_result_size_chars: int | float | None = None,
    dynamic_schema_overrides: SchemaOverrides | None = None,
    override: bool = False,
    registry: ToolRegistry | None = None,
) -> Callable[[Function], Function]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    toolset: str | None = None,
    description: str | None = None,
    registry: ToolRegistry | None = None,
    **options: Any,
) -> Any:
    """Register a function as a tool and return it unchanged, so you can still call it directly.

    Used bare (`@tool`) or with options (`@tool(toolset="weather", emoji="🌤")`), over `def` and `async def`.
    The name is the function's, the toolset the last part of its module's name, the description the first
    paragraph of its docstring, unless an option says otherwise. All other options are those of `register()`.
    A parameter named `ctx` receives the ToolContext and is not shown to the model.
    """
    _refuse_unknown(options)
    options_given = function is None

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # The frame that defines the function: string hints may use its local names.
        frame = sys._getframe(1 if options_given else 2)
        target = default_registry if registry is None else registry
        tool_name = name or str(getattr(function, "__name__", ""))
        try:
            _register(
                function,
                local_names=frame.f_locals,
                registry=target,
                name=tool_name,
                toolset=toolset or _toolset_of(function),
                description=description,
                options=options,
            )
        except RegistrationError as error:
            loading = current_loading()
            if loading is None:
                raise
            # As with register(): inside a tool file or plugin, the error affects only this tool.
            target.landing(loading)._reject(tool_name, str(error), loading)
        return function

    return decorate if function is None else decorate(function)


_OPTIONS = frozenset(
    {
        "emoji",
        "check_fn",
        "requires_env",
        "effects",
        "max_result_size_chars",
        "dynamic_schema_overrides",
        "override",
        "origin",
    }
)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        known = ", ".join(sorted(_OPTIONS | {"name", "toolset", "description", "registry"}))
        raise RegistrationError(f"@tool has no option {unknown[0]!r}; its options are {known}")


def _register(
    function: Callable[..., Any],
    *,
    local_names: Mapping[str, Any],
    registry: ToolRegistry,
    name: str,
    toolset: str,
    description: str | None,
    options: Mapping[str, Any],
) -> None:
    _refuse_what_cannot_be_called(function)
    signature = read_signature(function, local_names)
    text = signature.description if description is None else description
    registry.register(
        name=name,
        toolset=toolset,
        schema={"name": name, "description": text, "parameters": signature.schema},
        handler=make_handler(function, signature, name),
        is_async=gives_coroutine(function),
        description=text,
        **{**options, "requires_env": list(options.get("requires_env") or ())},
    )


def _refuse_what_cannot_be_called(function: Any) -> None:
    if not callable(function) or isinstance(function, (type, staticmethod)) or not hasattr(function, "__qualname__"):
        raise RegistrationError(f"@tool decorates functions, not {function!r}; write `@tool` above a `def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(
            f"@tool function {function.__qualname__!r} is a generator; a tool returns one result: return a list"
        )


def _toolset_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or "__main__"
    return DEFAULT_TOOLSET if module == "__main__" else module.rpartition(".")[2]
