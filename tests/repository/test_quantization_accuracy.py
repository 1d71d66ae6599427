"""The accuracy benchmark: its arithmetic, its report, and what it refuses to measure."""

import importlib
import json
from pathlib import Path

import pytest
from native_libraries import failing_library

from quire.errors import NativeUnavailableError
from quire.native.availability import native_unavailable_reason

FOLDER = Path(__file__).parents[2] / "benchmarks"
NEEDS_KERNELS = pytest.mark.skipif(
    native_unavailable_reason() is not None,
    reason="packed weights need compiled kernels",
)
TINY = {"vocab_size": 512, "num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 256}


@pytest.fixture
def benchmark(benchmark):
    return benchmark("quantization_accuracy")


@pytest.fixture
def tiny(benchmark, monkeypatch):
    """A small shape that the benchmark knows."""
    shapes = importlib.import_module("quire.cli.bench.model_shapes").SHAPES
    monkeypatch.setitem(shapes, "tiny", shapes["5m"] | TINY)
    return "tiny"


def test_an_interval_holds_the_figure_and_is_as_wide_as_chance(benchmark):
    is_right = [index % 4 != 0 for index in range(400)]
    found = benchmark.interval(400, lambda chosen: sum(is_right[i] for i in chosen) / 400)
    assert found.value == 0.75
    assert found.low == pytest.approx(0.75 - 1.96 * (0.75 * 0.25 / 400) ** 0.5, abs=0.01)
    assert found.high == pytest.approx(0.75 + 1.96 * (0.75 * 0.25 / 400) ** 0.5, abs=0.01)


def test_figures_of_the_demo_are_compared_question_by_question(benchmark):
    exact = benchmark.Answered([2.0, 4.0], [2, 2], [True, False])
    found = benchmark.Answered([2.0, 8.0], [2, 2], [False, True])
    figures = benchmark.demo_figures("int4", found, exact)
    assert figures.perplexity == pytest.approx(2.718281828**2.5)
    assert figures.more.value == pytest.approx(2.718281828**1 - 1)
    assert (figures.right.value, figures.lost, figures.won) == (0.5, 1, 1)


@NEEDS_KERNELS
def test_fewer_bits_miss_more_and_bfloat16_misses_nothing(benchmark, tiny):
    figures = {each.method: each for each in benchmark.measure_random(tiny)}
    assert {"none", "bf16", "int8", "int4"} <= set(figures) <= set(benchmark.METHODS)
    assert figures["none"].weights == figures["none"].logits == figures["bf16"].weights == 0
    assert 0 < figures["bf16"].logits < 1e-4
    assert figures["int8"].weights == pytest.approx(0.0065, rel=0.1)  # of normal weights
    assert 0.06 < figures["int4"].weights < 0.081  # its head is int8
    assert figures["bf16"].logits < figures["int8"].logits < figures["int4"].logits
    sizes = [figures[name].weight_bytes for name in ("none", "bf16", "int8", "int4")]
    assert sizes == sorted(set(sizes), reverse=True)
    if "bfloat16" in figures:
        assert figures["bfloat16"].weights == 0
        assert figures["bf16"].logits < figures["bfloat16"].logits < figures["int8"].logits
        assert figures["bfloat16"].weight_bytes == figures["bf16"].weight_bytes


def test_nothing_is_measured_where_kernels_do_not_run(benchmark, monkeypatch):
    monkeypatch.setattr(benchmark, "native_unavailable_reason", lambda: "there is no C++ compiler")
    with pytest.raises(NativeUnavailableError, match="there is no C"):
        benchmark.measure(1)


@NEEDS_KERNELS
def test_weights_that_were_not_packed_are_no_figure(benchmark, tiny, tmp_path, monkeypatch):
    library = importlib.import_module("quire_quantizations.linear_library")
    monkeypatch.setattr(library, "LIBRARY", failing_library(tmp_path))
    with pytest.raises(NativeUnavailableError, match=r"g\+\+"):
        list(benchmark.measure_random(tiny))


def test_the_committed_report_is_that_of_the_committed_figures(benchmark):
    figures = json.loads((benchmark.RESULTS / "quantization.json").read_text(encoding="utf-8"))
    committed = (benchmark.RESULTS / "quantization.md").read_text(encoding="utf-8")
    assert committed == benchmark.report(figures)
    assert {each["model"] for each in figures["random"]} == set(benchmark.RANDOM_MODELS)
