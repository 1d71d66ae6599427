"""The work of comparisons of schemas, that each schema is read once, and in which order."""

import json
import os
import subprocess
import sys

from quire_structured_output.schemas.one_of import ExclusiveBranches
from quire_structured_output.schemas.schema_facts import Comparison


def work_of(branches):
    charged = []
    comparison = Comparison(lambda schema: schema, charged.append)
    demands = ExclusiveBranches(comparison).demands(branches, {})
    return sum(charged), demands


def enums(count, size):
    return [{"enum": [f"{i} {k}" for k in range(size)]} for i in range(count)]


def test_larger_enums_are_more_work():
    small, _ = work_of(enums(10, 2))
    large, demands = work_of(enums(10, 2_000))
    assert demands == [[]] * 10
    assert large > 5 * small


def test_the_values_of_an_enum_are_read_once():
    few, _ = work_of(enums(4, 200))
    many, _ = work_of(enums(8, 200))
    assert many < 5 * few, "as the pairs, and not as the pairs and values"


def test_enums_with_a_common_value_are_told_apart_by_the_others():
    _, demands = work_of([{"enum": ["a", "b", 1]}, {"enum": ["b", "c", True]}])
    assert all(demands)


SEVERAL = ["string", "number", "array", "object"]


def arrays_and_objects(value):
    """Return a schema of four types; of arrays and of objects two of these have none in common."""
    only = {"type": "integer", "const": value}
    of_objects = {"properties": {"a": only}, "required": ["a"]}
    return {"type": SEVERAL, "minItems": 1, "items": only, **of_objects}


def records(value):
    """Return a schema of objects that two of these tell apart by the last of their names."""
    names = ["first", "second", "third", "fourth", "fifth", "sixth", "last"]
    properties = {name: {"type": "string"} for name in names[:-1]} | {"last": {"const": value}}
    return {"type": "object", "required": names, "properties": properties}


IN_ORDER = [
    {"oneOf": [arrays_and_objects(1), arrays_and_objects(2) | {"maxLength": 3, "maximum": 3}]},
    {"oneOf": [records(value) for value in range(3)]},
]
PRINTED = """
import json, sys
from collections import Counter
from quire_structured_output.schemas.schema_normal_form import normal_form
for schema in json.load(sys.stdin):
    spent = Counter()
    print(json.dumps([normal_form(schema, spent), spent]))
"""


def printed(hash_seed):
    """Return what a process with a seed of its hashes prints of the schemas."""
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    command, schemas = [sys.executable, "-c", PRINTED], json.dumps(IN_ORDER)
    run = subprocess.run(command, input=schemas, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_schema_costs_the_same_in_every_process():
    assert printed(hash_seed=1) == printed(hash_seed=6)
