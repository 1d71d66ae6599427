"""Complements of schemas: what types and what strings they allow is one alternative."""

import pytest

from quire_structured_output.schemas.other_words import other_words
from quire_structured_output.schemas.schema_complement import ALL_TYPES, Complement, complement

NO_STRING = ["object", "array", "number", "boolean", "null"]
NOT_A, NOT_B = (f"^(?:{other_words([word])})$" for word in "ab")
COMPLEMENTS = {
    "types and strings are one schema": (
        [{"enum": ["a"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}],
    ),
    "truth values stay apart": (
        [{"enum": ["a", True]}],
        [
            {"type": ["object", "array", "string", "number", "null"], "pattern": NOT_A},
            {"enum": [False]},
        ],
    ),
    "types alone": ([{"type": "string"}, {"type": NO_STRING}], [{"type": [*ALL_TYPES]}]),
    "duplicates are there once": (
        [{"required": ["a"]}, {"enum": ["a"]}, {"required": ["a", "b"]}, {"enum": ["a"]}],
        [
            {"type": [*ALL_TYPES], "pattern": NOT_A},
            {"type": "object", "properties": {"a": False}},
            {"type": "object", "properties": {"b": False}},
        ],
    ),
    "two patterns stay two": (
        [{"enum": ["a"]}, {"enum": ["b"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}, {"type": "string", "pattern": NOT_B}],
    ),
    "no strings where types allow all of them": (
        [{"enum": ["a"]}, {"type": "number"}],
        [{"type": [*ALL_TYPES]}],
    ),
    "types beside a pattern stay beside other types": (
        [{"allOf": [{"enum": ["a", None]}]}, {"type": ["object", "array", "string", "number"]}],
        [{"type": [*ALL_TYPES], "pattern": NOT_A}],
    ),
}


@pytest.mark.parametrize("case", COMPLEMENTS)
def test_the_complement_of_several_schemas(case):
    schemas, parts = COMPLEMENTS[case]
    found = complement({"allOf": schemas}, lambda schema: schema)
    assert found == Complement(parts, is_whole=True)
