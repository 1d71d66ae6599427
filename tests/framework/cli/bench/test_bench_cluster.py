"""`quire bench cluster` prints its table and its checks, and writes them as Markdown."""

import json

import pytest

from quire.cli.main import main

SMALL = ["bench", "cluster", "--replicas", "4", "--requests", "60", "--deaths", "1"]


def test_the_table_is_printed_and_written(tmp_path, capsys):
    file = tmp_path / "cluster.md"
    assert main([*SMALL, "--output", str(file)]) == 0
    shown, written = capsys.readouterr().out, file.read_text()
    for policy in ("round_robin", "least_loaded", "prefix", "oracle"):
        assert policy in shown
        assert f"| {policy} |" in written
    assert "60 requests, 2 a second, on 4 replicas of 320 KV blocks, 1 deaths" in shown
    assert "| no request is lost | yes |" in written
    assert "yes  no request is lost" in shown


def test_figures_are_those_of_the_policies_that_were_asked_for(capsys):
    options = ["--policies", "prefix", "--json", "--step-ms", "10", "1", "0.1", "--rate", "2"]
    assert main([*SMALL, *options]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures["policies"]) == ["prefix"]
    assert figures["policies"]["prefix"]["num_requests"] == 60
    assert figures["step_ms"] == [10, 1, 0.1]
    assert figures["requests_per_s"] == 8
    assert "hits within 5 % of the oracle's" not in figures["checks"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "0"], "more than 0"),
        (["--step-ms", "-1", "0", "0"], "must not be negative"),
        (["--replicas", "0"], "at least 1"),
        (["--deaths", "-1"], "must not be negative"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, message, capsys):
    assert main([*SMALL, *options]) == 2
    assert message in capsys.readouterr().err
