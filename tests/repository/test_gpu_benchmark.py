"""The GPU benchmark's arithmetic and report, which no GPU is needed for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.bench.model_shapes import SHAPES

FOLDER = Path(__file__).parents[2] / "benchmarks" / "gpu"
H200 = (4.3e12, 790e12)  # copies and products, as they were measured on one


@pytest.mark.parametrize(
    ("shape", "single", "batch", "prefill", "mixed"),
    [
        ("qwen3-0.6b", 3284, 34_697, 434_000, 36_200),
        ("llama-3.2-1b", 1717, 91_476, 318_000, 70_000),
        ("llama-3.1-8b", 284, 19_915, 49_000, 13_300),
        ("qwen3-8b", 281, 18_425, 48_400, 12_700),
    ],
)
def test_limits_are_those_that_were_worked_out_by_hand(
    benchmark, shape, single, batch, prefill, mixed
):
    rooflines, figures = benchmark("rooflines"), benchmark("engine_figures")
    rates, cost = rooflines.Rates(*H200), rooflines.ModelCost.of(SHAPES[shape])
    assert 1 / cost.decode_s(rates, [1024]) == pytest.approx(single, rel=0.01)
    assert 256 / cost.decode_s(rates, [1024] * 256) == pytest.approx(batch, rel=0.01)
    assert 8192 / cost.prefill_s(rates, 8192) == pytest.approx(prefill, rel=0.01)
    lengths = figures.Load().mixed_lengths()
    num_out = sum(length for _, length in lengths)
    assert num_out == 133_966, "the published benchmark's number of output tokens"
    assert num_out / cost.mixed_s(rates, lengths, 256) == pytest.approx(mixed, rel=0.01)


def test_uneven_contexts_hold_as_many_tokens_as_even_ones(benchmark):
    lengths = benchmark("decode_bandwidth").random_lengths
    for batch in (1, 8, 17, 256):
        uneven = lengths(batch, 1024, is_even=False)
        assert sum(uneven) == pytest.approx(1024 * batch, rel=0.001)
        assert batch == 1 or max(uneven) > 2 * min(uneven)


def test_results_of_a_stage_before_its_failure_are_kept(benchmark):
    merge, found = benchmark("run").merge, {}
    for piece in ({"rows": [1], "a": 1}, {"rows": [2]}, {"a": 3}):
        merge(found, piece)
    assert found == {"rows": [1, 2], "a": 3}


def test_the_report_of_no_run_is_the_one_that_is_committed_until_there_is_one(benchmark):
    committed = (FOLDER.parent / "results" / "gpu.md").read_text(encoding="utf-8")
    if not (FOLDER.parent / "results" / "gpu.json").exists():
        assert committed == benchmark("report").write_markdown({"stages": {}})


def test_without_a_gpu_it_says_so_and_what_to_do():
    if _has_gpu():
        pytest.skip("there is one")
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "there is no CUDA device; --dry-run" in done.stderr


@pytest.mark.slow
def test_a_dry_run_takes_every_figure(tmp_path):
    done = subprocess.run(
        [sys.executable, FOLDER / "run.py", "--dry-run", "--out", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    errors = {name: stage["error"] for name, stage in report["stages"].items() if "error" in stage}
    assert not errors
    assert all(row["is_right"] for row in report["stages"]["correctness"]["backends"])
    engines = report["stages"]["correctness"]["engines"]
    assert [each["num_different"] for each in engines] == [0]
    assert all(each["max_graph_requests"] for each in engines)
    failed = [stage["failed"] for stage in report["stages"].values() if "failed" in stage]
    assert not failed
    figures = report["stages"]["engine:5m"]
    assert all(figures[f"{name}_tok_s"] > 0 for name in ("single", "batch", "prefill", "mixed"))
    assert any("captured" in line for line in figures["log"])
    for name in ("bandwidth", "products"):
        assert not [row for row in report["stages"][name]["rows"] if "error" in row]
    assert "the figures are meaningless" in (tmp_path / "gpu.md").read_text(encoding="utf-8")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()
