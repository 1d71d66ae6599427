"""An engine that runs steps on a CPU as on a GPU: kernels, device inputs, captured steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recorded_runs import RecordedRuns

from quire import LLM
from quire.layers import SingleDevice
from quire.worker.graphs.decode_graphs import DecodeGraphs
from quire.worker.graphs.graph_capture import StepCapture
from quire.worker.model_runner import ModelRunner

AS_ON_A_GPU = {
    "device": "cpu", "dtype": "float32", "kernels": "triton", "attention_backend": "triton",
}  # fmt: skip


def runner_of(llm: LLM) -> ModelRunner:
    return llm._running.core.runner


@contextmanager
def recorded_engine(
    folder: Path, sizes: list[int], **options: Any
) -> Iterator[tuple[LLM, RecordedRuns]]:
    """An engine whose decode steps are captured for these sizes, and the number of their replays.

    For each size, the largest first: the step, and its sampling; with adapters both once more.
    """
    with LLM(str(folder), **AS_ON_A_GPU, **options) as llm:
        yield llm, record(llm, sizes)


def record(llm: LLM, sizes: list[int]) -> RecordedRuns:
    capturer = RecordedRuns()
    capture(llm, sizes, capturer)
    return capturer


def capture(llm: LLM, sizes: list[int], capturer: StepCapture) -> None:
    runner = runner_of(llm)
    graphs = DecodeGraphs(runner.device_inputs, runner.pipeline, sizes, SingleDevice())
    refusal = graphs.capture(
        capturer,
        runner.compute,
        runner.model.compute_logits,
        with_adapters=runner.adapters is not None,
    )
    assert refusal is None
    runner.graphs = graphs
