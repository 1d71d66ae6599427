"""The scorecard of reliability: its table is on the page, and its measures find what they seek."""

import json
import os
import re
import socket
from itertools import combinations
from pathlib import Path

import pytest

from quire.testing.tool_parsing import ToolSample

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "reliability"
PAGE = ROOT / "docs" / "reliability.md"
TESTS = ROOT / "tests"


def test_the_page_has_the_table_of_the_results(benchmark):
    scorecard, rows = benchmark("scorecard"), benchmark("rows")
    results = json.loads(scorecard.RESULTS.read_text(encoding="utf-8"))
    assert scorecard.table(rows.ROWS, results) in PAGE.read_text(encoding="utf-8")
    assert set(results) <= {row.id for row in rows.ROWS}


def test_the_table_says_what_was_not_measured_and_what_is_not_met(benchmark, monkeypatch, tmp_path):
    scorecard, row = benchmark("scorecard"), benchmark("row")
    rows = [row.Row(f"R{i}", "a measure", "an aim", lambda limits: None) for i in (1, 2, 3)]
    rows.append(row.Row("R4", "a measure", "an aim", missing="it needs a laboratory"))
    rows.append(row.Row("R5", "a measure", "an aim", lambda limits: None))
    results = {
        "R5": scorecard.entry(row.Measured("read", True, "a page, 2026-11-27"), "do it"),
        "R1": scorecard.entry(row.Measured("good", True), "do it"),
        "R2": scorecard.entry(row.Measured("bad", False), "do it"),
    }
    page = tmp_path / "page.md"
    page.write_text(f"before {scorecard.START}\nold\n{scorecard.END} after")
    monkeypatch.setattr(scorecard, "PAGE", page)
    scorecard.fill(rows, results)
    lines = page.read_text().splitlines()
    assert lines[0].startswith("before")
    assert "| R1 | a measure | an aim | good | yes |" in lines[3]
    assert "| R2 | a measure | an aim | bad | **no** |" in lines[4]
    assert "`do it`" in lines[4]
    assert lines[5] == "| R3 | a measure | an aim | not measured yet | | |"
    assert lines[6] == "| R4 | a measure | an aim | not measured yet: it needs a laboratory | | |"
    assert lines[7] == "| R5 | a measure | an aim | read | yes | a page, 2026-11-27 |"
    assert lines[8].endswith("after")
    assert "old" not in page.read_text()


def test_the_table_has_every_row_and_a_row_is_measured_or_says_why_not(benchmark):
    rows = benchmark("rows").ROWS
    assert [row.id for row in rows] == [f"R{i}" for i in range(1, 25)]
    assert [row.id for row in rows if row.run is None and not row.missing] == []


def test_figures_of_other_results_are_read_with_their_dates(benchmark):
    committed, limits = benchmark("committed"), benchmark("row").Limits()
    rows = ("grammar_decisions", "suite_accepts", "grammar_times", "suite_time", "mutation_score")
    for name in rows:
        measured = getattr(committed, name)(limits)
        assert re.search(r"\[\w+\.md\]\(\.\./benchmarks/results/\w+\.md\), 2\d{3}", measured.source)
        assert re.search(r"\d", measured.text)
    assert committed.suite_accepts(limits).text.startswith("0 of ")


def test_every_attack_of_the_page_has_tests_that_exist(
    benchmark,
):
    listed = benchmark("security_corpus").listed()
    assert list(listed) == [f"S{i}" for i in range(1, 29)]
    assert [
        path for paths in listed.values() for path in paths if not (TESTS / path).exists()
    ] == []
    assert [attack for attack, paths in listed.items() if not paths] == []


def test_splits_are_all_places_of_one_and_two_cuts(benchmark):
    splits = list(benchmark("parser_splits")._splits(5))
    assert sorted(splits) == sorted([(1,), (2,), (3,), (4,), *combinations(range(1, 5), 2)])
    assert benchmark("parser_splits")._pieces("abcde", (1, 3)) == ["a", "bc", "de"]
    assert any(len(split) > 2 for split in benchmark("parser_splits")._splits(20))


def test_a_parser_that_depends_on_the_cut_is_found(benchmark):
    class Leaky:
        def feed(self, delta):
            return [delta.strip()]

        def close(self):
            return []

    class Kit:
        samples = (ToolSample("a b", "a b"),)

        def read(self, sample, pieces):
            parser = Leaky()
            return "".join(event for piece in pieces for event in parser.feed(piece))

    assert not all(benchmark("parser_splits")._cases(Kit()))


def test_a_slope_leaves_the_warm_up_out(benchmark):
    samples = benchmark("mixed_load").Samples(times_s=[float(i) for i in range(20)])
    memory = [1000 * i for i in range(8)] + [8000 + 3 * i for i in range(12)]
    assert samples.slope(memory) == pytest.approx(3)


def test_code_that_must_not_be_there_is_found(benchmark, tmp_path):
    source = tmp_path / "source.py"
    source.write_text("import pickle\nfrom dill import x\nre.compile('x')\neval('1')\n")
    assert list(benchmark("surface")._offences(source)) == [1, 2, 4]


def test_listeners_of_a_process_are_found(benchmark):
    tree = benchmark("process_tree")
    before = tree.listening_addresses([os.getpid()])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (found,) = set(tree.listening_addresses([os.getpid()])) - set(before)
    assert found == f"0100007F:{port:04X}"


def test_a_stream_says_what_a_client_got(benchmark):
    stream = benchmark("served").Stream("http://127.0.0.1:1")
    stream.start()
    stream.join(20)
    assert stream.got.reset == "ConnectError"
    assert not stream.got.is_complete
    assert not stream.got.has_typed_error
    for line in ('data: {"choices": [{"text": "a"}]}', "", ": comment", "data: [DONE]"):
        stream._take(line)
    assert (stream.got.texts, stream.got.is_done) == (["a"], True)
    stream._take('data: {"error": {"code": "engine_dead"}}')
    assert stream.got.error == "engine_dead"


GOOD = {
    "goodput_ratio": 0.93,
    "goodput_ratio_by_cpu": 0.99,
    "lag_p99_ms": 20.0,
    "livez_p99_ms": 30.0,
    "livez_health_port_p99_ms": 10.0,
    "probe_late_p99_ms": 1.0,
    "front_cpu_of_a_refusal_ms": 0.2,
    "refused_with_retry_after": 1.0,
    "resets": 0,
}


@pytest.mark.parametrize(
    ("change", "is_met"),
    [
        ({}, True),
        ({"goodput_ratio": 0.5}, True),
        ({"goodput_ratio": 0.5, "goodput_ratio_by_cpu": 0.8}, False),
        ({"lag_p99_ms": 51.0}, False),
        ({"livez_p99_ms": 101.0}, False),
        ({"refused_with_retry_after": 0.99}, False),
        ({"resets": 1}, False),
    ],
)
def test_an_overload_is_judged_by_every_aim(benchmark, change, is_met):
    assert benchmark("mixed_load").judged(GOOD | change).is_met is is_met
