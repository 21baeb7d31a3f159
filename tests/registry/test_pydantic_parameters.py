"""Parameters of @tool that use pydantic: described, converted to instances, and checked by the model's own rules."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import AfterValidator, AnyUrl, BaseModel, Field, PositiveInt, StringConstraints, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from toolcrib.core.errors import RegistrationError
from toolcrib.registry.decorator import tool
from toolcrib.registry.registry import ToolRegistry


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """A line of an order.

    Attributes:
        article: What is ordered.
    """

    article: str
    pieces: int = Field(ge=1, description="How many.")
    colour: Colour = Colour.RED

    @field_validator("article")
    @classmethod
    def _is_sold(cls, value: str) -> str:
        if value == "moon":
            raise ValueError("the moon is not for sale")
        return value


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("it is odd")
    return value


class Order(BaseModel):
    lines: list[Line]
    kind: Literal["new", "repeat"] = "new"


@dataclass
class Parcel:
    line: Line
    weight: float = 1.0


class LineRecord(TypedDict):
    line: Line


class Tree(BaseModel):
    name: str
    children: list[Tree] = []


@pydantic_dataclass
class Point:
    x: Annotated[int, Field(ge=0)]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


SAW = {"article": "saw", "pieces": 2}


class DeclaredTool:
    """A function as a tool: its parameters' schema, and what it received."""

    def __init__(self, function: Any) -> None:
        registry = ToolRegistry()
        tool(registry=registry, toolset="shop")(function)
        [entry] = registry.entries()
        self.entry = entry

    @property
    def properties(self) -> dict[str, Any]:
        found: dict[str, Any] = self.entry.parameters["properties"]
        return found

    def __call__(self, **arguments: Any) -> Any:
        return json.loads(self.entry.handler(arguments))


def test_a_model_is_described_with_its_fields_texts_and_limits() -> None:
    """Nested models are inlined; docstrings and Field() describe the fields."""

    def order(order: Order) -> str:
        return ""

    line = DeclaredTool(order).properties["order"]["properties"]["lines"]["items"]

    assert line["description"] == "A line of an order."
    assert line["properties"]["article"] == {"type": "string", "description": "What is ordered."}
    assert line["properties"]["pieces"] == {"type": "integer", "minimum": 1, "description": "How many."}
    assert line["properties"]["colour"] == {"type": "string", "enum": ["red", "blue"], "default": "red"}
    assert line["required"] == ["article", "pieces"]


def test_the_function_receives_instances() -> None:
    """Models, nested in models, lists, dicts, unions, dataclasses and TypedDicts, arrive as what the hint says."""
    seen: dict[str, Any] = {}

    def take(
        order: Order,
        parcel: Parcel,
        shelf: LineRecord,
        point: Point,
        by_name: dict[str, list[Line] | str],
        tree: Tree | None = None,
    ) -> None:
        seen.update(locals())

    DeclaredTool(take)(
        order={"lines": [SAW]},
        parcel={"line": SAW},
        shelf={"line": SAW},
        point={"x": 3},
        by_name={"a": [SAW], "b": "none"},
        tree={"name": "root", "children": [{"name": "leaf"}]},
    )

    line = Line(article="saw", pieces=2)
    assert seen["order"] == Order(lines=[line])
    assert seen["parcel"] == Parcel(line)
    assert seen["shelf"] == {"line": line}
    assert seen["point"] == Point(3)
    assert seen["by_name"] == {"a": [line], "b": "none"}
    assert seen["tree"] == Tree(name="root", children=[Tree(name="leaf")])


def test_a_models_own_rule_is_a_clear_argument_error() -> None:
    """The error names the tool, the argument, the place in it and the rule; no link, no class of pydantic."""

    def order(order: Order) -> str:
        return "sold"

    answer = DeclaredTool(order)(order={"lines": [SAW, {"article": "moon", "pieces": 0}]})

    assert answer["error"] == (
        "order: argument 'order': lines.1.article: the moon is not for sale; "
        "lines.1.pieces: Input should be greater than or equal to 1"
    )


def test_constrained_types_keep_their_limits() -> None:
    """`PositiveInt`, `constr(...)`, validators and pydantic's own types need no Field and no model."""
    seen: list[Any] = []

    def send(
        pieces: PositiveInt,
        code: Annotated[str, StringConstraints(min_length=2)],
        even: Annotated[int, AfterValidator(_even)],
        to: AnyUrl,
    ) -> None:
        seen.append((pieces, code, even, to))

    declared = DeclaredTool(send)
    good = {"pieces": 1, "code": "ab", "even": 2, "to": "ftp://shop/x"}
    declared(**good)

    assert declared.properties["pieces"]["exclusiveMinimum"] == 0
    assert declared.properties["code"]["minLength"] == 2
    assert seen == [(1, "ab", 2, AnyUrl("ftp://shop/x"))]
    for wrong in ({"pieces": 0}, {"code": "a"}, {"even": 3}, {"to": "nowhere"}):
        assert next(iter(wrong)) in declared(**{**good, **wrong})["error"]
    assert len(seen) == 1


def test_field_in_annotated_describes_limits_and_gives_a_default() -> None:
    """`Annotated[int, Field(...)]` works without any model; a default in it is used and not required."""
    seen: list[Any] = []

    def scale(
        size: Annotated[int, Field(ge=1, le=9, description="A digit.")],
        tags: Annotated[list[str], Field(default_factory=list)],
    ) -> None:
        seen.append((size, tags))

    declared = DeclaredTool(scale)
    declared(size=3)

    assert declared.properties["size"] == {"type": "integer", "minimum": 1, "maximum": 9, "description": "A digit."}
    assert declared.entry.parameters["required"] == ["size"]
    assert seen == [(3, [])]
    assert "less than or equal to 9" in declared(size=30)["error"]


def test_a_union_of_models_with_a_discriminator_chooses_by_it() -> None:
    """The schema lists the members without references to definitions that are not there."""
    seen: list[Any] = []

    def pet(animal: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None:
        seen.append(animal)

    declared = DeclaredTool(pet)
    declared(animal={"kind": "dog", "age": 3})

    assert seen == [Dog(kind="dog", age=3)]
    assert "$ref" not in json.dumps(declared.entry.parameters)
    assert "#/$defs" not in json.dumps(declared.entry.parameters)


def test_two_classes_of_one_name_are_kept_apart() -> None:
    """Recursive definitions of equal names don't replace each other."""

    def other() -> Any:
        class Tree(BaseModel):
            height: int
            next: Tree | None = None

        Tree.model_rebuild(_types_namespace={"Tree": Tree})
        return Tree

    kind = other()

    def both(a: Tree, b: Any) -> None: ...

    both.__annotations__ = {"a": Tree, "b": kind}
    parameters = DeclaredTool(both).entry.parameters

    assert len(parameters["$defs"]) == 2
    assert parameters["properties"]["a"]["$ref"] != parameters["properties"]["b"]["$ref"]


def test_a_model_is_a_result_too() -> None:
    """A returned model becomes JSON."""

    def order(order: Order) -> Order:
        return order

    assert DeclaredTool(order)(order={"lines": [SAW]})["lines"] == [{**SAW, "colour": "red"}]


def test_field_as_a_default_value_is_refused_with_the_right_form() -> None:
    """`x: int = Field(...)` would reach the function as a FieldInfo."""

    def scale(size: int = Field(ge=1)) -> None: ...

    with pytest.raises(RegistrationError, match=r"put Field\(\.\.\.\) into the hint"):
        DeclaredTool(scale)


def test_pydantic_is_not_imported_for_other_tools() -> None:
    """A tool without pydantic never loads it."""
    code = (
        "import sys\nfrom toolcrib import tool\n"
        "@tool(toolset='x')\ndef f(a: int, b: list[str]) -> str:\n    'F.'\n    return ''\n"
        "print('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
