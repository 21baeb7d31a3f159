"""`@tool`: a plain function becomes a registered tool, with the schema taken from its hints and docstring."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, overload

from toolcrib.core.errors import RegistrationError
from toolcrib.core.types import CheckFn, EffectsDeclaration, SchemaOverrides
from toolcrib.registry.adapter import gives_coroutine, make_handler
from toolcrib.registry.collisions import current_loading
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.registry.signature import read_signature

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
    """Register a function as a tool and return it unchanged, so that it can still be called directly.

    Used bare (`@tool`) or with options (`@tool(toolset="weather", emoji="🌤")`), over `def` and `async def`.
    The name is the function's, the toolset the last part of its module's name, the description the first
    paragraph of its docstring, unless an option says otherwise. All other options are those of `register()`.
    A parameter named `ctx` receives the ToolContext and is not shown to the model.
    """
    _refuse_unknown(options)
    options_given = function is None

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        # The frame that defines the function: its local names may appear in hints that are written as text.
        frame = sys._getframe(1 if options_given else 2)
        target = default_registry if registry is None else registry
        try:
            _register(
                function,
                local_names=frame.f_locals,
                registry=target,
                name=name or str(getattr(function, "__name__", "")),
                toolset=toolset or _toolset_of(function),
                description=description,
                options=options,
            )
        except RegistrationError as error:
            loading = current_loading()
            if loading is None:
                raise
            # As with register(): inside a tool file or plugin the error costs this tool alone.
            target.landing(loading)._reject(str(error))
        return function

    return decorate if function is None else decorate(function)


_OPTIONS = frozenset(
    {"emoji", "check_fn", "requires_env", "effects", "max_result_size_chars", "dynamic_schema_overrides", "override"}
)


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        known = ", ".join(sorted(_OPTIONS | {"name", "toolset", "description", "registry"}))
        raise RegistrationError(f"@tool has no option {unknown[0]!r}; it takes {known}")


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
        raise RegistrationError(f"@tool stands over a function, not over {function!r}; write `@tool` above a `def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise RegistrationError(
            f"@tool function {function.__qualname__!r} yields; a tool gives one result: collect a list and return it"
        )


def _toolset_of(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or "__main__"
    return DEFAULT_TOOLSET if module == "__main__" else module.rpartition(".")[2]
