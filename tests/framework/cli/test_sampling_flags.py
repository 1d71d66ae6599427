"""Flags of one generation become `SamplingParams`, and nothing that was given is lost."""

import json

import pytest

from quire.cli.command_parser import CommandParser
from quire.cli.sampling_flags import MAX_SCHEMA_BYTES, add_generation_flags, read_sampling_params
from quire.errors import SettingsError, UsageError
from quire.sampling_params import SamplingParams, StructuredOutputsParams


def params_of(*argv, default=256):
    parser = CommandParser(("run",))
    add_generation_flags(parser)
    return read_sampling_params(parser.read(argv), default)


def test_without_flags_only_the_length_is_the_commands_own():
    assert params_of(default=99) == SamplingParams(max_tokens=99)


def test_every_number_that_is_given_counts_also_a_zero():
    argv = "--temperature 0 --top-p 0.5 --top-k 0 --min-p 0 --seed 0 --max-tokens 3 --n 2"
    assert params_of(*argv.split(), "--min-tokens", "0") == SamplingParams(
        temperature=0.0, top_p=0.5, top_k=0, min_p=0.0, seed=0, max_tokens=3, n=2, min_tokens=0
    )


def test_stop_strings_are_kept_in_order():
    assert params_of("--stop", "b", "--stop", "a, c").stop == ("b", "a, c")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("a=1", "a", 1), ("a=0.5", "a", 0.5), ("a=true", "a", True), ("a=x=y", "a", "x=y"),
     ("a=", "a", ""), ('a="1"', "a", "1")],
)  # fmt: skip
def test_a_field_has_a_value_of_json_or_else_text(text, name, value):
    assert params_of("--field", text).extra_args == {name: value}


def test_several_fields_are_all_kept():
    assert params_of("--field", "a=1", "--field", "b=2").extra_args == {"a": 1, "b": 2}


@pytest.mark.parametrize("text", ["a", "=1", ""])
def test_a_field_without_a_name_or_a_value_is_refused(text):
    with pytest.raises(SettingsError, match="--field must be NAME=VALUE, got"):
        params_of("--field", text)


def test_a_value_out_of_range_is_refused_by_its_name():
    with pytest.raises(UsageError, match="top_p"):
        params_of("--top-p", "2")


def test_constraints_are_read_from_their_flags(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"type": "object"}))
    constraints = {
        ("--json-schema", str(path)): StructuredOutputsParams(json={"type": "object"}),
        ("--regex", "a+"): StructuredOutputsParams(regex="a+"),
        ("--choice", "a", "--choice", "b"): StructuredOutputsParams(choice=("a", "b")),
    }
    for argv, constraint in constraints.items():
        assert params_of(*argv).structured_outputs == constraint


def test_two_constraints_are_wrong_usage():
    with pytest.raises(UsageError, match="--choice cannot be used with --regex"):
        params_of("--regex", "a", "--choice", "b")


def test_a_schema_of_just_the_largest_size_is_read(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text("{}".ljust(MAX_SCHEMA_BYTES))
    assert params_of("--json-schema", str(path)).structured_outputs.json == {}
    path.write_text("{}".ljust(MAX_SCHEMA_BYTES + 1))
    with pytest.raises(SettingsError, match="is larger than"):
        params_of("--json-schema", str(path))


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path):
    path = tmp_path / "schema.json"
    with pytest.raises(SettingsError, match=r"no such file: .*schema.json"):
        params_of("--json-schema", str(path))
    path.write_text("{")
    with pytest.raises(SettingsError, match=r"schema.json is not JSON"):
        params_of("--json-schema", str(path))
