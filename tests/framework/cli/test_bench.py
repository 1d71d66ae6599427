import json

import pytest

from quire.cli.commands import COMMANDS
from quire.cli.main import main


@pytest.mark.parametrize("measure", COMMANDS["bench"].actions)
def test_every_measure_explains_itself(measure, capsys):
    assert main(["bench", measure, "--help"]) == 0
    assert f"usage: quire bench {measure}" in capsys.readouterr().out


def test_a_measure_must_be_named(capsys):
    assert main(["bench"]) == 2
    assert "MEASURE" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_a_count_is_a_whole_number_from_one_on(text, capsys):
    assert main(["bench", "scheduler", "--rounds", text]) == 2
    assert "--rounds must be " in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["throughput", "--num-prompts", "1", "--input-len", "4", "--output-len", "2"],
        ["scheduler", "--running", "2", "--contexts", "--pool-sizes", "--rounds", "2"],
        [
            "structured",
            "--num-prompts",
            "2",
            "--output-len",
            "4",
            "--repeats",
            "1",
            "--num-schemas=1",
        ],
        ["prefix", "demo", "--hit-rates", "0.5", "--num-prompts", "1", "--prompt-len", "32"],
    ],
    ids=lambda argv: argv[0],
)
def test_figures_are_printed_for_people(argv, capsys):
    assert main(["bench", *argv]) == 0
    assert not capsys.readouterr().out.startswith("{")


def test_throughput_counts_what_it_generates(capsys):
    argv = ["bench", "throughput", "--num-prompts", "2", "--input-len", "8", "--output-len", "4"]
    assert main([*argv, "--repeats", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["model"] == "demo"
    assert figures["seconds_min"] <= figures["seconds_median"] <= figures["seconds_max"]
    assert figures["output_tokens_per_s"] == pytest.approx(8 / figures["seconds_median"])
    assert figures["total_tokens_per_s"] == pytest.approx(24 / figures["seconds_median"])


def test_structured_compares_all_shares_with_none(capsys):
    argv = ["bench", "structured", "--num-prompts", "5", "--output-len", "6", "--repeats", "1"]
    assert main([*argv, "--num-grammars", "3", "--num-schemas", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    none, *others = figures["shares"]
    assert [row["share"] for row in figures["shares"]] == [0.0, 0.2, 0.8, 1.0]
    assert none["of_unstructured"] == 1.0
    assert none["both_p99_ms"] == 0.0, "without grammars there are no masks"
    assert all(0.0 < row["sending_ms"] <= row["sending_p99_ms"] for row in others)
    assert all(0.0 < row["collecting_ms"] <= row["both_p99_ms"] for row in others)
    assert all(row["output_tokens_per_s"] > 0 for row in figures["shares"])
    assert figures["first_token_ms"]["number"] == 2
    assert figures["first_token_ms"]["refused"] == 0
    assert "hostile" not in figures


@pytest.mark.slow
def test_structured_measures_streams_beside_hostile_grammars(capsys):
    argv = ["bench", "structured", "--num-prompts", "2", "--output-len", "20", "--repeats", "1"]
    assert main([*argv, "--num-schemas", "1", "--hostile"]) == 0
    assert "between tokens of plain streams, alone and beside" in capsys.readouterr().out


@pytest.mark.slow
def test_masks_in_another_process_are_not_timed(capsys):
    assert main(["bench", "structured", "--engine-process", "--repeats", "1"]) == 1
    assert "in the engine's own process only" in capsys.readouterr().err


def test_startup_says_why_a_fresh_process_failed(tmp_path, capsys):
    assert main(["bench", "startup", str(tmp_path), "--repeats", "1"]) == 1
    error = capsys.readouterr().err
    assert "a fresh process failed" in error
    assert "config.json" in error
    assert "[engine_dead]" in error
