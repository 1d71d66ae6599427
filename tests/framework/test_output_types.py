"""Output types are constraints: of pydantic, dataclasses, outlines, or plain values."""

import dataclasses
import enum
import json
import re
import subprocess
import sys
from typing import Annotated, Any, Literal, NewType

import hypothesis
import msgspec
import pydantic
import pytest
from hypothesis import strategies as st
from outlines import types as terms
from typing_extensions import TypedDict

from quire.errors import InvalidRequestError, RequestError
from quire.frontend.intake.constraint_values import check_values
from quire.output_types import MAX_CHOICES, MAX_CONSTRAINT_CHARACTERS, MAX_TERMS
from quire.sampling_params import SamplingParams, StructuredOutputsParams


class Person(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0, alias="years")


@dataclasses.dataclass
class Point:
    x: int
    y: int | None = None


class Place(TypedDict):
    city: str


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"


class Shade(enum.StrEnum):
    DARK = "dark"


class Level(enum.IntEnum):
    LOW = 1


Size = Literal["small", "large"]


@pytest.mark.parametrize(
    ("given", "schema"),
    [
        ({"type": "null"}, {"type": "null"}),
        ('{"type": "null"}', '{"type": "null"}'),
        (True, True),
        (False, False),
        (Person, Person.model_json_schema()),
        (pydantic.TypeAdapter(list[Person]), pydantic.TypeAdapter(list[Person]).json_schema()),
        (Point, pydantic.TypeAdapter(Point).json_schema()),
        (Place, pydantic.TypeAdapter(Place).json_schema()),
        (Color, {"enum": ["red", "green"], "title": "Color", "type": "string"}),
        (Level, {"enum": [1], "title": "Level", "type": "integer"}),
        (Size, {"enum": ["small", "large"], "type": "string"}),
        (Literal[1, "a"], {"enum": [1, "a"]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, pydantic.Field(ge=3)], {"type": "integer", "minimum": 3}),
        (NewType("Id", int), {"type": "integer"}),
        (Any, {}),
        (terms.JsonSchema({"type": "null"}), '{"type": "null"}'),
    ],
)
def test_a_type_is_its_json_schema(given, schema):
    constraint = StructuredOutputsParams(json=given)
    assert constraint.json == schema
    check_values(constraint)
    sent = msgspec.msgpack.encode(SamplingParams(structured_outputs=constraint))
    assert msgspec.msgpack.decode(sent, type=SamplingParams).structured_outputs == constraint


@pytest.mark.parametrize(
    ("given", "choice"),
    [
        (["a", "b"], ("a", "b")),
        (("a",), ("a",)),
        (Color, ("red", "green")),
        (Shade, ("dark",)),
        ([Shade.DARK], ("dark",)),
        (Size, ("small", "large")),
        (terms.Choice(["a", 1, 1.5, True]), ("a", "1", "1.5", "True")),
        (terms.Choice(Color), ("red", "green")),
    ],
)
def test_a_list_of_values_is_a_choice(given, choice):
    found = StructuredOutputsParams(choice=given).choice
    assert found == choice
    assert {type(item) for item in found} == {str}


@pytest.mark.parametrize(
    ("term", "texts", "others"),
    [
        (terms.Regex("[0-9]+"), ["12"], ["a"]),
        ("a" + terms.Regex("[0-9]|b").at_least(2), ["a1b"], ["a1", "1b"]),
        (terms.either("a+", terms.digit), ["a+", "3"], ["aa"]),
        (terms.optional("x") + terms.Regex("y").exactly(2), ["yy", "xyy"], ["xy"]),
        (terms.Choice(["a.", 7]), ["a.", "7"], ["ab"]),
    ],
)
def test_a_term_is_its_regular_expression(term, texts, others):
    regex = StructuredOutputsParams(regex=term).regex
    assert all(re.fullmatch(regex, text) for text in texts)
    assert not any(re.fullmatch(regex, text) for text in others)


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        (Person, StructuredOutputsParams(json=Person)),
        (Place, StructuredOutputsParams(json=Place)),
        (pydantic.TypeAdapter(int), StructuredOutputsParams(json={"type": "integer"})),
        (list[int], StructuredOutputsParams(json=list[int])),
        (Color, StructuredOutputsParams(choice=("red", "green"))),
        (Size, StructuredOutputsParams(choice=("small", "large"))),
        (Level, StructuredOutputsParams(json=Level)),
        (Literal[1, 2], StructuredOutputsParams(json=Literal[1, 2])),
        (terms.JsonSchema({}), StructuredOutputsParams(json="{}")),
        (terms.CFG("start: x"), StructuredOutputsParams(grammar="start: x")),
        (terms.Choice(["a", "b"]), StructuredOutputsParams(choice=("a", "b"))),
        (terms.Choice(["a", terms.Regex("b")]), StructuredOutputsParams(regex="(a|(b))")),
        (terms.Regex("b"), StructuredOutputsParams(regex="(b)")),
        ({"regex": "a", "backend": "b"}, StructuredOutputsParams(regex="a", backend="b")),
    ],
)  # fmt: skip
def test_an_output_type_is_a_constraint(given, constraint):
    assert SamplingParams(structured_outputs=given).structured_outputs == constraint


class Odd:
    """A class without a JSON schema."""


class Broken:
    @classmethod
    def __get_pydantic_core_schema__(cls, source, handler):
        raise ZeroDivisionError("its own fault")


class Empty(enum.Enum):
    pass


nested = terms.Regex("a")
for _ in range(20):
    nested = nested + nested


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("json", 5, "got an object of type int"),
        ("json", b"{}", "got an object of type bytes"),
        ("json", ["a"], "got an object of type list"),
        ("json", Person(name="a", years=3), "got an object of type Person"),
        ("json", Odd, "the type Odd has no JSON schema"),
        ("json", Broken, "its own fault"),
        ("json", Point(1), "got an object of type Point"),
        ("json", Color.RED, "got an object of type Color"),
        ("json", terms.Regex("a"), "got an object of type Regex"),
        ("json", terms.JsonSchema({}, whitespace_pattern=" "), "whitespace_pattern"),
        ("json", "a" * (MAX_CONSTRAINT_CHARACTERS + 1), "at most 1048576"),
        ("regex", 5, "got an object of type int"),
        ("regex", re.compile("a"), "got an object of type Pattern"),
        ("regex", terms.JsonSchema({}), "give a JsonSchema as json"),
        ("regex", "a" + terms.CFG("b"), "give a JsonSchema as json and a CFG as grammar"),
        ("regex", terms.Choice([Person]), "cannot be a part of a regular expression"),
        ("regex", nested, f"more than {MAX_TERMS} terms"),
        ("choice", "abc", "got an object of type str"),
        ("choice", {"a"}, "got an object of type set"),
        ("choice", 5, "got an object of type int"),
        ("choice", ["a"] * (MAX_CHOICES + 1), f"at most {MAX_CHOICES}"),
        ("choice", ["a" * 2**19] * 3, "at most 1048576"),
        ("choice", Person, "got the type Person"),
        ("grammar", terms.Regex("a"), "got an object of type Regex"),
        ("grammar", {}, "got an object of type dict"),
        ("structural_tag", [], "got an object of type list"),
        ("json_object", "yes", "must be true or false"),
        ("json_object", None, "must be true or false"),
        ("calls", {}, "must be a CallGrammar"),
        ("backend", 5, "must be the name of a backend"),
    ],
)  # fmt: skip
def test_what_is_no_constraint_is_an_error_that_names_the_field(field, value, message):
    with pytest.raises(RequestError, match=re.escape(message)) as caught:
        StructuredOutputsParams(**{field: value})
    assert caught.value.param == f"structured_outputs.{field}"


@pytest.mark.parametrize("values", [["a", 1], Level, Literal["a", None], terms.Choice([None])])
def test_a_choice_that_is_not_text_is_named_with_its_index(values):
    with pytest.raises(InvalidRequestError, match="given as json") as caught:
        StructuredOutputsParams(choice=values)
    assert re.fullmatch(r"structured_outputs\.choice\[\d\]", caught.value.param)


@pytest.mark.parametrize("given", ["a", 5, b"", [1], Person(name="a", years=1), {"type": "null"}])
def test_what_is_no_output_type_is_refused(given):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(structured_outputs=given)
    assert caught.value.param == "structured_outputs"


def test_neither_pydantic_nor_outlines_is_imported_for_plain_values():
    code = (
        "import sys\n"
        "from quire.sampling_params import SamplingParams\n"
        "SamplingParams(structured_outputs={'json': {}})\n"
        "SamplingParams(structured_outputs={'choice': ['a']})\n"
        "assert not {'pydantic', 'outlines'} & set(sys.modules)\n"
        "sys.modules['pydantic'] = None\n"  # as if it were not installed
        "from quire.errors import InvalidRequestError\n"
        "try:\n"
        "    SamplingParams(structured_outputs=int)\n"
        "except InvalidRequestError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install pydantic" in run.stdout, run.stderr


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.sampled_from([Person, Color, Size, Odd, Point(1), terms.digit, terms.JsonSchema({})])
    | st.text(st.characters(), max_size=3).map(lambda text: text + "\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.sets(st.integers())
    | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
FIELDS = st.sampled_from(StructuredOutputsParams.__struct_fields__)


def outcome(act):
    try:
        return act(), None
    except RequestError as error:
        return None, error


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(st.dictionaries(FIELDS, VALUES, max_size=2))
def test_anything_is_a_constraint_that_can_be_sent_or_an_error_that_names_it(fields):
    constraint, error = outcome(lambda: StructuredOutputsParams(**fields))
    if error is not None:
        assert error.param.startswith("structured_outputs")
        return
    _, error = outcome(lambda: check_values(constraint))
    if error is not None:
        assert constraint.constraint in str(error)
    elif constraint.backend is None:
        sent = msgspec.msgpack.encode(constraint)
        again = msgspec.msgpack.decode(sent, type=StructuredOutputsParams)
        assert json.dumps(msgspec.to_builtins(again)) == json.dumps(msgspec.to_builtins(constraint))
