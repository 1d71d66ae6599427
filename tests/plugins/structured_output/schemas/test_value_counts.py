"""Upper bounds of the number of values."""

import pytest

from quire.errors import GrammarError
from quire_structured_output.schemas.schema_normal_form import normal_form
from quire_structured_output.schemas.value_counts import most_values

FLAG = {"type": "boolean"}


def closed(*required, **properties):
    return {"type": "object", "properties": properties, "required": list(required),
            "additionalProperties": False}  # fmt: skip


COUNTS = [
    (False, 0),
    ({}, None),
    ({"enum": [1, 1.0, "a"]}, 2),
    ({"type": ["boolean", "null"]}, 3),
    ({"type": "integer", "minimum": 1, "exclusiveMaximum": 3.5}, 3),
    ({"type": "string"}, None),
    ({"anyOf": [{"enum": ["a"]}, {"enum": ["b", "c"]}]}, 3),
    ({"anyOf": [{"enum": ["a"]}, {"type": "string"}]}, None),
    ({"allOf": [{"type": "string"}, {"enum": ["a", "b"]}]}, 2),
    ({"type": "boolean", "anyOf": [{"enum": [True]}, {"type": "string"}]}, 2),
    (closed(), 1),
    (closed("a", a=FLAG), 2),
    (closed("a", a=FLAG, b=FLAG, c=False), 6),
    (closed("a", a=False), 0),
    (closed("a", a={"type": "string"}), None),
    ({"type": "object", "properties": {"a": FLAG}}, None),
]


@pytest.mark.parametrize(("schema", "count"), COUNTS)
def test_values_are_counted_by_their_keywords(schema, count):
    assert most_values(schema, lambda part: part) == count


def test_a_recursive_schema_has_no_count():
    node = {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False}
    node["properties"]["a"] = node
    assert most_values(node, lambda part: part) is None


@pytest.mark.parametrize("items", [COUNTS[6][0] | {}, closed("a", a=FLAG)])
def test_an_array_of_more_unique_items_than_values_is_refused(items):
    schema = {"type": "array", "items": items, "uniqueItems": True}
    normal_form({**schema, "minItems": 2})
    with pytest.raises(GrammarError, match="nothing satisfies 'uniqueItems' and 'minItems'"):
        normal_form({**schema, "minItems": 4})
