"""`@tool`: what is registered for a plain function, and what calling it gives."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import json
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union
from uuid import UUID

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import RegistrationError
from toolcrib.core.types import Effect, Source, ToolEntry
from toolcrib.registry.decorator import tool
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry

if TYPE_CHECKING:
    from somewhere_else import OnlyForTypeCheckers


class Unit(enum.Enum):
    METRIC = "metric"
    IMPERIAL = "imperial"


@dataclasses.dataclass
class Place:
    """Where on Earth.

    Attributes:
        latitude: Degrees north.
    """

    latitude: float
    longitude: Annotated[float, "Degrees east."] = 0.0


@dataclasses.dataclass
class Tree:
    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)


class Options(TypedDict):
    limit: int
    language: NotRequired[Literal["en", "de"]]


class Span(NamedTuple):
    start: int
    end: int = 9


class Filter(msgspec.Struct):
    field: str
    units: Unit = Unit.METRIC


def declare(function: Callable[..., Any], **options: Any) -> ToolEntry:
    """The entry that `@tool` makes of a function, in a registry of its own."""
    registry = ToolRegistry()
    assert tool(registry=registry, **options)(function) is function
    (entry,) = registry.entries()
    return entry


def schema_of(hint: Any) -> dict[str, Any]:
    """The schema of one required parameter with this hint."""

    def probe(value):
        """Probe."""

    probe.__annotations__ = {"value": hint}
    return declare(probe).parameters["properties"]["value"]


def received(hint: Any, value: Any) -> Any:
    """What the function gets for a JSON value."""
    caught: list[Any] = []

    def probe(value):
        """Probe."""
        caught.append(value)

    probe.__annotations__ = {"value": hint}
    answer = declare(probe).handler({"value": value})
    return caught[0] if caught else answer


def returned(value: Any) -> Any:
    """What the model gets for a returned value."""

    def probe():
        """Probe."""
        return value

    return declare(probe).handler({})


def test_bare_decorator_registers_on_the_default_registry_and_returns_the_function():
    """`@tool` without options fills the default registry, and the name still means the function."""

    @tool
    def bare_decorator_probe(city: str) -> str:
        """Say hello to a city."""
        return f"hello {city}"

    try:
        entry = default_registry.get_entry("bare_decorator_probe")
        assert entry is not None
        assert bare_decorator_probe("London") == "hello London"
        assert entry.handler({"city": "Paris"}, task_id="t") == "hello Paris"
        assert entry.toolset == __name__.rpartition(".")[2]
        assert (entry.description, entry.emoji, entry.is_async) == ("Say hello to a city.", "", False)
    finally:
        default_registry.deregister("bare_decorator_probe")


def test_every_option_reaches_the_entry():
    """The keyword options are those of register(), under the same names."""

    def check() -> bool:
        return True

    def overrides() -> dict[str, Any]:
        return {}

    def probe() -> None:
        """Ignored."""

    entry = declare(
        probe,
        name="other",
        toolset="things",
        description="Better.",
        emoji="🔧",
        check_fn=check,
        requires_env=["A_KEY"],
        effects=(Effect("network", "example.org"),),
        max_result_size_chars=5000,
        dynamic_schema_overrides=overrides,
        override=True,
    )

    assert (entry.name, entry.toolset, entry.description, entry.emoji) == ("other", "things", "Better.", "🔧")
    assert entry.schema["name"] == "other"
    assert entry.schema["description"] == "Better."
    assert (entry.check_fn, entry.requires_env, entry.max_result_size_chars) == (check, ["A_KEY"], 5000)
    assert entry.dynamic_schema_overrides is overrides
    assert entry.effects == (Effect("network", "example.org"),)


def test_a_misspelt_option_is_refused_by_name():
    """An option that does not exist is an error that lists those that do."""
    with pytest.raises(RegistrationError, match=r"no option 'emojy'.*emoji"):
        tool(emojy="x")


def test_toolset_of_a_script_is_custom():
    """A function of `__main__` has no module name to lend, so its toolset is `custom`."""

    def probe() -> None: ...

    probe.__module__ = "__main__"

    assert declare(probe).toolset == "custom"


def test_whole_schema_of_an_ordinary_function():
    """Hints, defaults and docstring make the schema that one would write by hand."""

    def weather(location: str, units: Literal["metric", "imperial"] = "metric", days: int = 1) -> str:
        """Get the weather
        for a place.

        Rain is given
        in millimetres.

        Args:
            location: City name or
                coordinates.
            units (str): Temperature units.
        """
        return location + units

    assert declare(weather).schema == {
        "name": "weather",
        "description": "Get the weather for a place.\n\nRain is given\nin millimetres.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City name or coordinates."},
                "units": {
                    "type": "string",
                    "enum": ["metric", "imperial"],
                    "description": "Temperature units.",
                    "default": "metric",
                },
                "days": {"type": "integer", "default": 1},
            },
            "required": ["location"],
            "additionalProperties": False,
        },
    }


PLACE = {
    "type": "object",
    "description": "Where on Earth.",
    "properties": {
        "latitude": {"type": "number", "description": "Degrees north."},
        "longitude": {"type": "number", "default": 0.0, "description": "Degrees east."},
    },
    "required": ["latitude"],
}


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (object, {}),
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
        (Literal[3, 1], {"type": "integer", "enum": [3, 1]}),
        (Literal["a", None], {"enum": ["a", None]}),
        (Unit, {"type": "string", "enum": ["metric", "imperial"]}),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}),  # noqa: UP045
        (Union[int, str], {"anyOf": [{"type": "integer"}, {"type": "string"}]}),  # noqa: UP007
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (list, {"type": "array"}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[int], {"type": "array", "items": {"type": "integer"}}),
        (Iterable[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (Annotated[str, "A word."], {"type": "string", "description": "A word."}),
        (
            Annotated[str, "A word."] | None,
            {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "A word."},
        ),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], {"type": "integer", "minimum": 1, "maximum": 9}),
        (
            Annotated[int | None, msgspec.Meta(ge=1)],
            {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
        ),
        (datetime, {"type": "string", "format": "date-time"}),
        (list[datetime], {"type": "array", "items": {"type": "string", "format": "date-time"}}),
        (date, {"type": "string", "format": "date"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Path, {"type": "string", "format": "path"}),
        (Decimal, {"type": "string", "format": "decimal"}),
        (Path | str, {"anyOf": [{"type": "string", "format": "path"}, {"type": "string"}]}),
        (Place, PLACE),
        (list[Place], {"type": "array", "items": PLACE}),
        (
            Options,
            {
                "type": "object",
                "properties": {"limit": {"type": "integer"}, "language": {"type": "string", "enum": ["en", "de"]}},
                "required": ["limit"],
            },
        ),
        (
            Filter,
            {
                "type": "object",
                "properties": {
                    "field": {"type": "string"},
                    "units": {"type": "string", "enum": ["metric", "imperial"], "default": "metric"},
                },
                "required": ["field"],
            },
        ),
        (
            Span,
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "integer", "default": 9}],
                "minItems": 1,
                "maxItems": 2,
            },
        ),
    ],
)
def test_schema_of_a_type(hint: Any, schema: dict[str, Any]):
    """Each supported type has one plain schema: references in place, no titles, choices in written order."""
    found = schema_of(hint)

    assert found == schema
    jsonschema_rs.validator_for(found)


def test_choices_keep_the_order_in_which_they_were_written():
    """Order matters to a model that reads; equality of dicts does not see it."""
    assert json.dumps(schema_of(Literal["z", "m", "a"])["enum"]) == '["z", "m", "a"]'


def test_recursive_type_keeps_its_definition():
    """A type that contains itself cannot be put in place, so it stays in `$defs`."""

    def plant(tree: Tree, place: Place) -> None:
        """Plant."""

    parameters = declare(plant).parameters

    assert parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert list(parameters["$defs"]) == ["Tree"]
    assert parameters["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    valid = {"tree": {"label": "a", "children": [{"label": "b"}]}, "place": {"latitude": 1}}
    assert jsonschema_rs.is_valid(parameters, valid)
    assert not jsonschema_rs.is_valid(parameters, valid | {"tree": {"label": "a", "children": [{}]}})


GOOGLE = """Sum.

Args:
    first (int, optional): The one
        to start with: 1 or 2.
    **second: The other.

Returns:
    third: Not a parameter.
"""
NUMPY = """Sum.

Parameters
----------
first : int, optional
    The one
    to start with: 1 or 2.
second
    The other.

Returns
-------
third : int
    Not a parameter.
"""
SPHINX = """Sum.

:param int first: The one
    to start with: 1 or 2.
:type first: int
:param second: The other.
:return: third
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_parameter_descriptions_of_each_docstring_style(docstring: str):
    """Google, NumPy and Sphinx docstrings describe parameters alike, and the summary stays the summary."""

    def probe(first: int, second: int, third: int = 0) -> None: ...

    probe.__doc__ = docstring
    entry = declare(probe)

    properties = entry.parameters["properties"]
    assert entry.description == "Sum."
    assert properties["first"]["description"] == "The one to start with: 1 or 2."
    assert properties["second"]["description"] == "The other."
    assert "description" not in properties["third"]


@given(st.text())
def test_no_docstring_breaks_the_declaration(docstring: str):
    """Whatever stands in a docstring, the tool is declared."""

    def probe(a: int) -> None: ...

    probe.__doc__ = docstring

    assert declare(probe).parameters["required"] == ["a"]


def test_text_in_annotated_wins_over_the_docstring():
    """The description nearest to the parameter is the one that counts."""

    def probe(a: Annotated[int, "From the hint."]) -> None:
        """Probe.

        Args:
            a: From the docstring.
        """

    assert declare(probe).parameters["properties"]["a"]["description"] == "From the hint."


def test_defaults_are_shown_in_json_where_json_has_a_form():
    """Enum, dataclass, Path and None defaults are shown; infinity and plain objects are not."""
    unshown = object()

    def probe(
        a: Unit = Unit.IMPERIAL,
        b: Place = Place(1.0),  # noqa: B008
        c: Path = Path("x"),
        d: str = None,  # noqa: RUF013
        e: float = float("inf"),
        f: Any = unshown,
    ) -> None: ...

    parameters = declare(probe).parameters
    properties = parameters["properties"]

    assert "required" not in parameters
    assert properties["a"]["default"] == "imperial"
    assert properties["b"]["default"] == {"latitude": 1.0, "longitude": 0.0}
    assert properties["c"]["default"] == "x"
    assert properties["d"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert "default" not in properties["e"]
    assert "default" not in properties["f"]


def test_hints_may_name_what_is_local_to_the_defining_function():
    """Under `from __future__ import annotations` a hint may name a class of the enclosing function."""

    class Mood(enum.Enum):
        GOOD = "good"

    registry = ToolRegistry()

    @tool(registry=registry)
    def probe(mood: Mood) -> str:
        return mood.name

    entry = registry.get_entry("probe")
    assert entry is not None
    assert entry.parameters["properties"]["mood"] == {"type": "string", "enum": ["good"]}
    assert entry.handler({"mood": "good"}) == "GOOD"


def test_context_is_passed_by_the_runtime_and_hidden_from_the_model():
    """A `ctx` parameter is not in the schema, and an argument of that name never takes its place."""

    def probe(word: str, ctx: OnlyForTypeCheckers, **rest: Any) -> Any:
        return [word, ctx.tool_name, rest]

    entry = declare(probe)
    context = ToolContext(services=None, tool_name="from the runtime")  # type: ignore[arg-type]

    assert list(entry.parameters["properties"]) == ["word"]
    assert entry.takes_context
    assert json.loads(entry.handler({"word": "w", "ctx": "forged"}, ctx=context, task_id="t")) == [
        "w",
        "from the runtime",
        {},
    ]


def test_handler_names_ctx_only_if_the_function_does():
    """Any other function's handler receives exactly the keyword arguments of the contract."""

    def probe(word: str) -> str:
        return word

    entry = declare(probe)

    assert not entry.takes_context
    assert list(inspect.signature(entry.handler, follow_wrapped=False).parameters) == ["args", "kwargs"]


def test_optional_context_may_be_missing():
    """A function whose `ctx` has a default can be called where there is no runtime."""

    def probe(ctx: ToolContext | None = None) -> str:
        return "no context" if ctx is None else "context"

    assert declare(probe).handler({}) == "no context"


def test_extra_arguments_reach_a_function_with_kwargs():
    """`**kwargs` opens the schema, and what the model adds arrives there."""

    def probe(a: int, **extra: Any) -> Any:
        return {"a": a, **extra}

    entry = declare(probe)

    assert "additionalProperties" not in entry.parameters
    assert json.loads(entry.handler({"a": 1, "b": 2}, task_id="hidden")) == {"a": 1, "b": 2}


async def test_async_function_is_awaited_and_encoded():
    """An `async def` is registered as async, and its handler is a coroutine function."""

    async def probe(a: int, ctx: Any = None) -> Any:
        return {"a": a, "ctx": ctx}

    entry = declare(probe)

    assert entry.is_async
    assert inspect.iscoroutinefunction(entry.handler)
    assert json.loads(await entry.handler({"a": 1}, ctx="c", task_id="t")) == {"a": 1, "ctx": "c"}


@pytest.mark.parametrize(
    ("hint", "given_value", "expected"),
    [
        (int, 3.0, 3),
        (float, 3, 3.0),
        (list[int], [1.0, 2], [1, 2]),
        (Unit, "imperial", Unit.IMPERIAL),
        (Place, {"latitude": 1}, Place(1.0, 0.0)),
        (Place | None, None, None),
        (dict[str, list[Place]], {"a": [{"latitude": 2.5}]}, {"a": [Place(2.5)]}),
        (Tree, {"label": "a", "children": [{"label": "b"}]}, Tree("a", [Tree("b")])),
        (Filter, {"field": "x"}, Filter("x")),
        (Span, [1, 2], Span(1, 2)),
        (set[str], ["a", "b"], {"a", "b"}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (Path, "a/b", Path("a/b")),
        (Path | None, "a", Path("a")),
        (date | str, "2024-02-03", date(2024, 2, 3)),
        (str | date, "tomorrow", "tomorrow"),
        (Place | Options, {"limit": 1}, {"limit": 1}),
        (date, "2024-02-03", date(2024, 2, 3)),
        (UUID, "12345678-1234-5678-1234-567812345678", UUID(int=0x12345678123456781234567812345678)),
        (bytes, "YWI=", b"ab"),
        (Any, {"x": [1.0]}, {"x": [1.0]}),
    ],
)
def test_arguments_arrive_as_the_annotated_type(hint: Any, given_value: Any, expected: Any):
    """JSON values become what the hint says, and nothing else changes."""
    value = received(hint, given_value)

    assert value == expected
    assert type(value) is type(expected)


def test_defaults_of_a_converted_dataclass_are_in_the_instance():
    """A dataclass argument behaves like one that its own constructor made, `vars()` included."""
    assert vars(received(Place, {"latitude": 1.0})) == {"latitude": 1.0, "longitude": 0.0}


def test_arguments_of_the_caller_are_not_changed():
    """Conversion makes new arguments; the dict that was passed stays as it was."""

    def probe(place: Place) -> None: ...

    arguments = {"place": {"latitude": 1}}
    declare(probe).handler(arguments)

    assert arguments == {"place": {"latitude": 1}}


@pytest.mark.parametrize(
    ("hint", "value"), [(date, "soon"), (Place, {"latitude": "x"}), (Path, 3), (Unit | int, "no"), (UUID, "1")]
)
def test_an_argument_that_cannot_be_converted_is_named(hint: Any, value: Any):
    """What a type refuses is an error result that names the tool and the parameter."""
    error = json.loads(received(hint, value))["error"]

    assert error.startswith("probe: argument 'value': ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": "é"}, '{"a": "é"}'),
        ([1, 2], "[1, 2]"),
        ((1, 2), "[1, 2]"),
        (None, '{"result": null}'),
        (3, '{"result": 3}'),
        (True, '{"result": true}'),
        (Unit.METRIC, '{"result": "metric"}'),
        (date(2024, 2, 3), '{"result": "2024-02-03"}'),
        (Path("a"), '{"result": "a"}'),
        (b"ab", '{"result": "YWI="}'),
        (Place(1.5), '{"latitude": 1.5, "longitude": 0.0}'),
        ([Filter("x")], '[{"field": "x", "units": "metric"}]'),
        ({"tags": set("hgfedcba")}, '{"tags": ["a", "b", "c", "d", "e", "f", "g", "h"]}'),
        ({Unit.METRIC: 1}, '{"metric": 1}'),
        ({"x": float("nan")}, '{"x": null}'),
    ],
)
def test_returned_values_become_json_text(value: Any, expected: str):
    """Objects and lists are encoded as they are, single values as `{"result": …}`, always as valid JSON."""
    assert returned(value) == expected


def test_text_is_passed_through_as_it_is():
    """A str is the tool's own answer, whatever is in it."""
    assert returned('{"a": 1}') == '{"a": 1}'
    assert returned("plain") == "plain"


def test_multimodal_result_stays_a_dict():
    """Pictures are not turned into text."""
    value = {"_multimodal": True, "content": [{"type": "text", "text": "x"}]}

    assert returned(value) is value


@pytest.mark.parametrize("value", [object(), {"a": object()}, {(1, 2): 3}, len])
def test_a_value_without_json_form_is_an_error_that_names_its_type(value: Any):
    """What cannot be encoded is said to the model, with the type, instead of failing somewhere later."""
    answer = json.loads(returned(value))

    assert answer["error_type"] == "tool_result_contract"
    assert type(value).__name__ in answer["error"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_every_json_value_is_encoded_as_valid_json(value: Any):
    """No value made of JSON's own types can make the result unreadable."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert isinstance(json.loads(returned(value), parse_constant=refuse), dict | list)


def test_exceptions_of_the_function_propagate():
    """What a tool raises is turned into a result by dispatch, not hidden here."""

    def probe() -> None:
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        declare(probe).handler({})


def test_unhinted_parameter_accepts_anything():
    """A parameter without a hint is offered without a type."""

    def probe(a, b=2):
        return [a, b]

    entry = declare(probe)

    assert entry.parameters["properties"] == {"a": {}, "b": {"default": 2}}
    assert entry.handler({"a": {"x": 1}}) == '[{"x": 1}, 2]'


def test_wrapped_functions_keep_their_signature():
    """A function under another decorator is described by its own hints."""

    @functools.lru_cache
    def probe(a: int) -> int:
        return a + 1

    entry = declare(probe)

    assert entry.parameters["required"] == ["a"]
    assert entry.handler({"a": 1}) == '{"result": 2}'


def positional_only(a: int, /) -> None: ...
def star_args(*a: int) -> None: ...
def unsupported(a: complex) -> None: ...
def callback(a: Callable[[int], str]) -> None: ...
def unresolved(a: NoSuchName) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def misnamed(a: ToolContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (positional_only, "by keyword"),
        (star_args, "by keyword"),
        (unsupported, "of type complex"),
        (callback, "of type collections.abc.Callable"),
        (unresolved, "NoSuchName"),
        (misnamed, "named `ctx`"),
    ],
)
def test_what_cannot_be_offered_is_refused_with_function_parameter_and_advice(
    function: Callable[..., Any], advice: str
):
    """The author learns which function, which parameter and what to do."""
    with pytest.raises(RegistrationError) as caught:
        declare(function)

    assert repr(function.__name__) in str(caught.value)
    assert "parameter 'a'" in str(caught.value)
    assert advice in str(caught.value)


def test_methods_classes_and_generators_are_refused():
    """`@tool` stands over plain functions only, and says so."""

    class Thing:
        def method(self) -> None: ...

    def generator():
        yield 1

    with pytest.raises(RegistrationError, match="move it out of its class"):
        declare(Thing.method)
    with pytest.raises(RegistrationError, match="decorates functions"):
        declare(Thing)
    with pytest.raises(RegistrationError, match="return a list"):
        declare(generator)


def test_a_bad_function_costs_only_itself_while_a_file_is_loaded():
    """Inside a tool file the error is kept for `doctor`, and the next tool is registered."""
    registry = ToolRegistry()

    with registry.loading(Source("user", "my_tools")):
        tool(registry=registry)(unsupported)

        @tool(registry=registry)
        def fine() -> None: ...

    assert registry.get_all_tool_names() == ["fine"]
    assert "of type complex" in registry.rejections[0]


@pytest.mark.parametrize(
    ("hint", "plain", "given"),
    [
        (typing.List, list, [1]),  # noqa: UP006 - the old spelling is what is tested
        (typing.Tuple, tuple, [1, "a"]),  # noqa: UP006
        (typing.Dict, dict, {"a": 1}),  # noqa: UP006
        (typing.Set, set, [1]),  # noqa: UP006
        (typing.Sequence, Sequence, [1]),
        (typing.Mapping, Mapping, {"a": 1}),
        (typing.Iterable, Iterable, [1]),
    ],
)
def test_old_names_of_collections_mean_the_new_ones(hint, plain, given):
    """A bare `List` or `Tuple` from typing is the collection of anything, not an empty one."""
    assert schema_of(hint) == schema_of(plain)
    assert received(hint, given) == received(plain, given)


def plainly_wrapped(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


async def test_an_async_function_behind_a_plain_decorator_is_awaited():
    """A decorator that returns a plain function around an `async def` does not hide that it must be awaited."""

    async def probe(a: int) -> dict[str, int]:
        return {"a": a}

    entry = declare(plainly_wrapped(probe))

    assert entry.is_async
    assert await entry.handler({"a": 1}) == '{"a": 1}'


async def test_a_decorator_may_have_waited_for_an_async_function_already():
    """What comes out of the decorator counts, whether it is a coroutine or a value."""

    async def probe() -> int:
        return 1

    @functools.wraps(probe)
    def waits():
        return 2

    assert await declare(waits).handler({}) == '{"result": 2}'


def test_a_coroutine_that_a_plain_function_returns_is_closed():
    """It is an error for the author, and no warning that nobody awaited it."""

    async def forgotten() -> None: ...

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = json.loads(returned(forgotten()))

    assert answer["error_type"] == "tool_result_contract"
