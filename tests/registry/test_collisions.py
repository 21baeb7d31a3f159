"""Two tools with one name: who keeps it, who may replace or remove it, and what the log says."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from tests.registry.declaring import declare, ok, schema
from toolcrib.core.errors import PluginToolOverrideError
from toolcrib.core.types import Source
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.discovery import load_builtin_tools
from toolcrib.registry.registration import PLUGIN_NAMESPACE, SOURCE_ATTRIBUTE
from toolcrib.registry.registry import ToolRegistry

PLUGIN_CODE = '''
import functools
import operator
import threading

from toolcrib.registry.decorator import tool


def handler(args, **kwargs):
    return "plugin"


async def coroutine(args, **kwargs):
    return "plugin"


def greet(name: str) -> str:
    """Greets."""
    return name


class Handlers:
    def method(self, args, **kwargs):
        return "plugin"

    @classmethod
    def of_class(cls, args, **kwargs):
        return "plugin"

    @staticmethod
    def static(args, **kwargs):
        return "plugin"

    def __call__(self, args, **kwargs):
        return "plugin"


class Borrowed(dict):
    """An object whose method was made elsewhere."""


CALLABLES = {
    "function": handler,
    "lambda": lambda args, **kwargs: "plugin",
    "coroutine function": coroutine,
    "partial": functools.partial(handler),
    "partial of a partial": functools.partial(functools.partial(handler)),
    "bound method": Handlers().method,
    "class method": Handlers.of_class,
    "static method": Handlers.static,
    "callable object": Handlers(),
    "class": Handlers,
    "built-in": len,
    "partial of a built-in": functools.partial(print, "x"),
    "operator object": operator.itemgetter("x"),
    "method of a list": [].append,
    "borrowed method": Borrowed().get,
    "cached": functools.lru_cache(handler),
}


def wrapping(original):
    """A function of this plugin that claims to be the one it wraps."""

    @functools.wraps(original)
    def wrapper(args, **kwargs):
        return "plugin"

    return wrapper


def take(registry, name, handler, **options):
    registry.register(name=name, toolset="theirs", schema={}, handler=handler, override=True, **options)


def take_in_a_thread(registry, name, handler):
    errors = []

    def body():
        try:
            take(registry, name, handler)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def take_with_decorator(registry, name):
    tool(registry=registry, name=name, toolset="theirs", override=True)(greet)


def remove(registry, name):
    registry.deregister(name)
'''


@pytest.fixture
def make_plugin() -> Iterator[Callable[..., ModuleType]]:
    names: list[str] = []

    def make(name: str = "acme", may_override: bool = False) -> ModuleType:
        full_name = f"{PLUGIN_NAMESPACE}.{name}"
        module = ModuleType(full_name)
        setattr(module, SOURCE_ATTRIBUTE, Source("plugin", name, may_override=may_override))
        sys.modules[full_name] = module
        names.append(full_name)
        exec(compile(PLUGIN_CODE, full_name, "exec"), vars(module))
        return module

    yield make
    for full_name in names:
        sys.modules.pop(full_name, None)


@pytest.fixture
def registry() -> ToolRegistry:
    registry = ToolRegistry()
    declare(registry, "write", "file", emoji="first")
    return registry


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


# Without a plugin


def test_the_first_owner_of_a_name_keeps_it(registry: ToolRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """A second toolset is refused: an error in the log, a sentence for `doctor`, no exception, no change."""
    before = registry.generation
    declare(registry, "write", "other", emoji="second")

    assert registry.get_emoji("write") == "first"
    assert registry.get_toolset_for_tool("write") == "file"
    assert registry.generation == before
    assert levels(caplog) == [logging.ERROR]
    assert len(registry.rejections) == 1
    for part in ("'write'", "'file'", "'other'", "override=True"):
        assert part in registry.rejections[0]


def test_the_same_toolset_replaces_in_silence(registry: ToolRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """That is how a module is reloaded."""
    caplog.set_level(logging.DEBUG, logger="toolcrib")
    declare(registry, "write", "file", emoji="second")

    assert registry.get_emoji("write") == "second"
    assert registry.rejections == []
    assert levels(caplog) == []


@pytest.mark.parametrize(
    ("old", "new", "replaced"),
    [("mcp-a", "mcp-b", True), ("mcp-a", "mcp-a", True), ("file", "mcp-a", False), ("mcp-a", "file", False),
     ("mcp", "mcp-a", False), ("mcpa", "mcpb", False)],
)  # fmt: skip
def test_one_mcp_server_replaces_another(old: str, new: str, replaced: bool, caplog: pytest.LogCaptureFixture) -> None:
    """MCP over MCP is allowed and only a debug line; MCP over anything else, and the reverse, is refused."""
    caplog.set_level(logging.DEBUG, logger="toolcrib")
    registry = ToolRegistry()
    declare(registry, "fetch", old, emoji="first")
    declare(registry, "fetch", new, emoji="second")

    assert registry.get_emoji("fetch") == ("second" if replaced else "first")
    assert levels(caplog) == [logging.DEBUG if replaced else logging.ERROR]


def test_an_override_says_who_replaced_what(registry: ToolRegistry, caplog: pytest.LogCaptureFixture) -> None:
    """At level info, with the tool, both owners and both toolsets."""
    caplog.set_level(logging.DEBUG, logger="toolcrib")
    with registry.loading(Source("user", "mine.py")):
        declare(registry, "write", "other", override=True)

    assert registry.get_toolset_for_tool("write") == "other"
    [record] = caplog.records
    assert record.levelno == logging.INFO
    for part in ("'write'", "code tests.registry.declaring", "'file'", "user mine.py", "'other'"):
        assert part in record.getMessage()


def test_an_override_of_nothing_is_a_registration(caplog: pytest.LogCaptureFixture) -> None:
    """There is nobody to tell."""
    caplog.set_level(logging.DEBUG, logger="toolcrib")
    registry = ToolRegistry()
    declare(registry, "new", override=True)

    assert registry.get_all_tool_names() == ["new"]
    assert levels(caplog) == []


def test_an_overlay_follows_the_same_rules_against_its_parent(registry: ToolRegistry) -> None:
    """A name of the parent is taken there too; an override shadows it in the overlay alone."""
    overlay = ToolRegistry(parent=registry)
    declare(overlay, "write", "other", emoji="second")
    assert overlay.get_emoji("write") == "first"

    declare(overlay, "write", "other", emoji="second", override=True)
    assert overlay.get_emoji("write") == "second"
    assert registry.get_emoji("write") == "first"


# Plugins


KINDS = [
    "function", "lambda", "coroutine function", "partial", "partial of a partial", "bound method", "class method",
    "static method", "callable object", "class", "built-in", "partial of a built-in", "operator object",
    "method of a list", "borrowed method", "cached",
]  # fmt: skip
WAYS: dict[str, Callable[[ModuleType, ToolRegistry, Any], None]] = {
    "from its module": lambda plugin, registry, handler: plugin.take(registry, "write", handler),
    "from its thread": lambda plugin, registry, handler: plugin.take_in_a_thread(registry, "write", handler),
}


def test_the_table_of_callables_is_complete(make_plugin: Callable[..., ModuleType]) -> None:
    """Every kind that the plugin of these tests knows is tried."""
    assert list(make_plugin().CALLABLES) == KINDS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plugin_needs_consent_whatever_its_handler_is(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType], kind: str, way: str
) -> None:
    """`override=True` without the operator's consent is a PermissionError that says how to allow it."""
    plugin = make_plugin()

    with pytest.raises(PluginToolOverrideError, match=r"plugins\.entries\.acme\.allow_tool_override") as caught:
        WAYS[way](plugin, registry, plugin.CALLABLES[kind])

    assert isinstance(caught.value, PermissionError)
    assert registry.get_emoji("write") == "first"


@pytest.mark.parametrize("kind", KINDS)
def test_with_consent_a_plugin_may_replace(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log names it."""
    caplog.set_level(logging.INFO, logger="toolcrib")
    plugin = make_plugin(may_override=True)

    plugin.take(registry, "write", plugin.CALLABLES[kind])

    assert registry.get_toolset_for_tool("write") == "theirs"
    assert registry.get_entry("write").source.name == "acme"  # type: ignore[union-attr]
    assert "plugin acme" in caplog.records[-1].getMessage()


def test_a_plugin_is_known_by_its_function_under_the_decorator(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType]
) -> None:
    """The handler that `@tool` makes belongs to whoever wrote the function."""
    with pytest.raises(PluginToolOverrideError):
        make_plugin().take_with_decorator(registry, "write")


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"built-in", "partial of a built-in", "operator object",
                                                      "method of a list"}))  # fmt: skip
def test_a_plugin_s_handler_is_known_without_its_module_on_the_stack(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType], kind: str
) -> None:
    """Whoever made the handler counts when somebody else registers it."""
    plugin = make_plugin()

    with pytest.raises(PluginToolOverrideError):
        registry.register("write", "theirs", schema(), plugin.CALLABLES[kind], override=True)


def test_a_wrapper_belongs_to_who_wrote_it(registry: ToolRegistry, make_plugin: Callable[..., ModuleType]) -> None:
    """`functools.wraps` around a built-in handler does not make the wrapper a built-in."""
    load_builtin_tools()
    built_in = default_registry.get_entry("tool_search")
    assert built_in is not None

    for original in (ok, built_in.handler):
        with pytest.raises(PluginToolOverrideError):
            registry.register("write", "theirs", schema(), make_plugin().wrapping(original), override=True)


def test_the_registry_s_own_method_on_a_thread_does_not_hide_a_plugin(
    registry: ToolRegistry,
) -> None:
    """With nothing on the stack and nothing in the handler that tells who acts, tools that were loaded are safe."""
    with registry.loading(Source("builtin", "toolcrib.tools.file")):
        declare(registry, "patch", "file", emoji="first")
    register = functools.partial(registry.register, "patch", "theirs", {}, len, override=True)

    with ThreadPoolExecutor(1) as pool, pytest.raises(PluginToolOverrideError):
        pool.submit(register).result()

    assert registry.get_emoji("patch") == "first"


class Endless:
    """Claims to wrap itself."""

    def __call__(self, args: Any, **kwargs: Any) -> str:
        return "ok"

    @property
    def __wrapped__(self) -> Endless:
        return self


def test_a_handler_that_wraps_itself_can_be_registered(registry: ToolRegistry) -> None:
    """Looking for its maker comes to an end."""
    declare(registry, "endless", handler=Endless())

    assert registry.get_entry("endless") is not None


def test_a_plugin_without_override_never_replaces_a_foreign_tool(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    """Not even under the same toolset, which would count as a reload from its owner."""
    plugin = make_plugin()
    with registry.loading(Source("plugin", "acme")):
        declare(registry, "write", "file", handler=plugin.handler, emoji="second")

    assert registry.get_emoji("write") == "first"
    assert levels(caplog) == [logging.ERROR]


def test_a_plugin_may_replace_and_remove_what_is_its_own(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType]
) -> None:
    """Consent is about other people's tools."""
    plugin = make_plugin()
    plugin.take(registry, "mine", plugin.handler)
    plugin.take(registry, "mine", plugin.handler)
    plugin.remove(registry, "mine")

    assert registry.get_all_tool_names() == ["write"]


@pytest.mark.parametrize("overlaid", [False, True])
def test_a_plugin_may_not_remove_a_foreign_tool(
    registry: ToolRegistry, make_plugin: Callable[..., ModuleType], overlaid: bool
) -> None:
    """Neither where it lives nor by hiding it in an overlay; with consent it may, and MCP tools are free."""
    target = ToolRegistry(parent=registry) if overlaid else registry
    declare(registry, "fetch", "mcp-web")

    with pytest.raises(PluginToolOverrideError, match="remove"):
        make_plugin().remove(target, "write")
    make_plugin().remove(target, "fetch")
    assert target.get_all_tool_names() == ["write"]

    make_plugin(may_override=True).remove(target, "write")
    assert target.get_all_tool_names() == []


def test_code_may_remove_any_tool(registry: ToolRegistry) -> None:
    """The rule is for plugins."""
    registry.deregister("write")

    assert registry.get_all_tool_names() == []


# Who declared it


def test_the_source_says_who_declared_a_tool(make_plugin: Callable[..., ModuleType]) -> None:
    """A file that is loaded, a plugin by its module, and plain code by its own."""
    registry, plugin = ToolRegistry(), make_plugin()
    declare(registry, "by_code")
    plugin.take(registry, "by_plugin", len)
    with registry.loading(Source("user", "mine.py", "/somewhere/mine.py")):
        declare(registry, "by_file")

    kinds = {entry.name: entry.source.kind for entry in registry.entries()}
    assert kinds == {"by_code": "code", "by_plugin": "plugin", "by_file": "user"}
    assert registry.get_entry("by_code").source.name == declare.__module__  # type: ignore[union-attr]


def test_loading_can_be_nested(registry: ToolRegistry) -> None:
    """What the inner file registers is the inner file's, and afterwards the outer one goes on."""
    with registry.loading(Source("user", "outer.py")) as outer:
        declare(registry, "a")
        with registry.loading(Source("user", "inner.py")) as inner:
            declare(registry, "b")
        declare(registry, "c")

    assert (outer.registered, inner.registered) == (["a", "c"], ["b"])
    assert registry.get_entry("c").source.name == "outer.py"  # type: ignore[union-attr]


def test_loading_ends_with_an_exception(registry: ToolRegistry) -> None:
    """Nothing registered later is blamed on a file that failed."""
    with pytest.raises(ZeroDivisionError), registry.loading(Source("user", "mine.py")):
        _ = 1 / 0
    declare(registry, "later")

    assert registry.get_entry("later").source.kind == "code"  # type: ignore[union-attr]
