"""Unique items of a short enum as a list of arrays."""

from collections import Counter

import pytest

from quire_structured_output.schemas.listed_arrays import with_listed_arrays
from quire_structured_output.unique.unique_places import UNIQUE

SET = {"type": "array", "items": {"enum": ["x", "y"]}, UNIQUE: True}


@pytest.mark.parametrize("name", ["enum", "required", "items", "allOf", "a", UNIQUE])
def test_a_property_of_any_name_is_rewritten(name):
    found = with_listed_arrays({"properties": {name: SET}, "required": [name]}, Counter())
    part = found["properties"][name]
    assert UNIQUE not in part
    assert {"enum": [[], ["x"], ["y"], ["x", "y"], ["y", "x"]]} in part["allOf"][0]["anyOf"]


@pytest.mark.parametrize(
    "schema", [{"anyOf": [SET, {"type": "null"}]}, {"items": SET}, {"additionalProperties": SET}]
)
def test_arrays_are_found_in_all_places(schema):
    assert UNIQUE not in str(with_listed_arrays(schema, Counter()))


def test_listed_values_that_look_like_schemas_stay():
    schema = {"enum": [{"items": {"enum": [1]}, UNIQUE: True}]}
    assert with_listed_arrays(schema, Counter()) == schema
