"""The work of comparisons of schemas, and that each schema is read once."""

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
