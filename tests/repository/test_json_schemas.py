"""The measure of JSON schemas: its judge, its data, and that it counts every wrong decision."""

import json
from pathlib import Path

import pytest

from quire.errors import GrammarError
from quire.interfaces.structured_output import CompiledGrammar, Matcher, StructuredOutputBackend
from quire.testing.schema_judge import judge
from quire.testing.structured_output import EOS_TOKEN_IDS, contract_vocabulary

FOLDER = Path(__file__).parents[2] / "benchmarks"
ROW = {"name": "row", "schema": {"type": "boolean"}, "valid": [True, False], "invalid": [1]}


@pytest.fixture
def benchmark(benchmark):
    return benchmark("json_schemas")


def real_rows():
    with (FOLDER / "schemas/real.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


class Lenient(StructuredOutputBackend, CompiledGrammar, Matcher):
    """Accepts what `forbids` does not hold for."""

    def __init__(self, vocabulary, forbids=lambda token_id: False):
        super().__init__(vocabulary)
        self.forbids = forbids

    @classmethod
    def check(cls, params):
        if params.json == '"refused"':
            raise GrammarError("'refused' at / is not supported")

    def compile(self, params):
        if params.json == '"slow"':
            while True:
                pass
        if params.json == '"broken"':
            raise ValueError("a defect")
        return self

    def matcher(self):
        return self

    def accept(self, token_id):
        return not self.forbids(token_id)

    def fill_bitmask(self, words):
        words[0] = 1

    def rollback(self, num_tokens):
        pass

    def is_finished(self):
        return False


@pytest.mark.parametrize(
    ("schema", "instance", "is_valid"),
    [
        ({"pattern": r"^\d$"}, "٣", False),
        ({"pattern": r"^\d$"}, "3", True),
        ({"pattern": r"^\w$"}, "é", False),
        ({"pattern": r"^\"a$"}, '"a', True),
        ({"pattern": r"^\p{L}$"}, "é", True),
        ({"patternProperties": {r"^\d$": {"type": "null"}}}, {"٣": 1}, True),
        ({"patternProperties": {r"^\d$": {}}, "additionalProperties": False}, {"٣": 1}, False),
        ({"patternProperties": {r"^\d$": {}}, "additionalProperties": False}, {"3": 1}, True),
        ({"additionalProperties": {"type": "null"}}, {"a": 1}, False),
        ({"format": "ipv4"}, "1.2.3", False),
    ],
)
def test_the_judge_reads_regexes_as_ecma_262_and_asserts_formats(schema, instance, is_valid):
    assert judge(schema).is_valid(instance) is is_valid


def test_there_are_enough_schemas_with_instances_and_sources():
    rows = real_rows()
    assert len(rows) >= 300
    assert len({row["name"] for row in rows}) == len(rows)
    assert all(row["valid"] for row in rows)
    assert sum(len(row["invalid"]) for row in rows) > 1_000
    sources = (FOLDER / "schemas/SOURCES.md").read_text()
    packages = {row["name"].split("/")[0] for row in rows}
    assert not [package for package in packages if package not in sources]


def test_every_stored_verdict_is_the_judges():
    rows = real_rows()
    small = [row for row in rows if len(json.dumps(row["schema"])) < 1_000]
    assert len(small) > 50
    for row in small:
        validator = judge(row["schema"])
        assert all(validator.is_valid(instance) for instance in row["valid"]), row["name"]
        assert not any(validator.is_valid(instance) for instance in row["invalid"]), row["name"]


def test_wrong_accepts_are_counted(benchmark):
    result = benchmark.measure_apart(Lenient(contract_vocabulary()), ROW)
    assert (result["accepts"], result["rejects"]) == ([1], [])


@pytest.mark.parametrize("forbidden", [b"t", b"true", b"f"])
def test_a_reject_in_one_tokenization_is_a_wrong_reject(benchmark, forbidden):
    vocabulary = contract_vocabulary()
    token_id = vocabulary.tokens[forbidden][0]
    result = benchmark.measure_apart(Lenient(vocabulary, lambda other: other == token_id), ROW)
    assert result["rejects"] == [forbidden != b"f"]


def test_a_grammar_that_cannot_end_rejects_every_instance(benchmark):
    backend = Lenient(contract_vocabulary(), lambda other: other in EOS_TOKEN_IDS)
    assert benchmark.measure_apart(backend, ROW)["rejects"] == ROW["valid"]


@pytest.mark.parametrize(
    ("schema", "outcome"),
    [("refused", "refused by name"), ("broken", "failed"), ("slow", "timed out")],
)
def test_what_does_not_compile_has_its_own_count(benchmark, monkeypatch, schema, outcome):
    monkeypatch.setattr(benchmark, "TIMEOUT_S", 0.3)
    result = benchmark.measure_apart(Lenient(contract_vocabulary()), ROW | {"schema": schema})
    assert result["outcome"] == outcome


def test_refusals_are_counted_by_keyword(benchmark):
    assert benchmark.keyword_of("cannot honour 'multipleOf' at /a") == "multipleOf"
