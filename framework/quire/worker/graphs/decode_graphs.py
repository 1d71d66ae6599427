"""Captured decode steps: one token per request, captured once for a few batch sizes.

A step uses the smallest size that holds it. The remaining rows are padding, which reads and writes
the padding slot and the null block. Sampling is captured apart, because a mask may come between:

    compute   gather inputs, prepare attention, model, logits in a buffer that all sizes share
    sample    sample, append the tokens to the tables; for steps whose sampling is fully fused

Nothing in a captured step may depend on values that the host has for one step only: the capture
happens before the first request. Masked steps are sampled eagerly, from the same logits.

A pipeline stage receives before a captured step, in buffers of its own, and sends after it; only
the last stage has logits and samples. The devices of a tensor-parallel group capture each step
together, collectives included, and have it on all of them or on none. Which captured step computes
a plan depends on the plan alone, so all of them replay the same one.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from quire.errors import CapacityError, RefusedError
from quire.interfaces.lora import AdapterBatch
from quire.interfaces.model import StageTensors
from quire.layers.parallel import TensorParallelGroup
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs.agreement import all_agree
from quire.worker.graphs.graph_capture import StepCapture, causes_of, gc_disabled
from quire.worker.graphs.received_tensors import ReceivedTensors
from quire.worker.graphs.step_graphs import CapturedStep, StepGraphs
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline
from quire.worker.stage_forward import Computed

Compute = Callable[[StepInputs, AdapterBatch | None, StageTensors | None], Computed]
Head = Callable[[Tensor], Tensor]
ResultT = TypeVar("ResultT")

logger = logging.getLogger(__name__)


class DecodeGraphs(StepGraphs):
    """The captured decode steps of one worker.

    Args:
        inputs: Buffers that gather the inputs of a step.
        pipeline: Sampling pipeline.
        sizes: Numbers of requests to capture for, in ascending order.
        group: Tensor-parallel group of the worker.
        example: Tensors like those that the stage receives; None for the first stage.
        is_last: Whether the stage computes logits and samples.
    """

    def __init__(
        self,
        inputs: DeviceInputs,
        pipeline: SamplingPipeline,
        sizes: Sequence[int],
        group: TensorParallelGroup,
        *,
        example: StageTensors | None = None,
        is_last: bool = True,
    ) -> None:
        received = None if example is None else ReceivedTensors(example, sizes[-1])
        super().__init__(inputs, received)
        self.sizes = list(sizes)
        self._inputs = inputs
        self._pipeline = pipeline
        self._group = group
        self._device = inputs.tables.device
        self._logits: Tensor | None = None
        if is_last:
            shape = (sizes[-1], len(pipeline.vocabulary.token_ids))
            self._logits = torch.empty(shape, dtype=torch.float32, device=self._device)
        self._steps: dict[tuple[int, bool], CapturedStep] = {}

    @torch.inference_mode()
    def capture(
        self,
        capturer: StepCapture,
        compute: Compute,
        logits_of: Head,
        *,
        with_adapters: bool,
    ) -> RefusedError | None:
        """Capture every size, the largest first, and again for steps whose requests use adapters.

        Args:
            capturer: Step capture to use.
            compute: Layers of the stage. Neither function is stored, to avoid a reference cycle.
            logits_of: LM head of the model; called on the last stage only.
            with_adapters: Whether requests can use adapters.

        Returns:
            The reason why no step is captured, on this device or on another one of the group.

        Raises:
            CapacityError: There is not enough memory.
            RefusedError: A step failed while the other devices of the group waited for this one.
        """
        started = time.perf_counter()
        self._inputs.send_decode([])  # all rows are padding
        variants = (False, True) if with_adapters else (False,)
        refusal = None
        with gc_disabled():
            for num_rows, uses_adapters in product(reversed(self.sizes), variants):
                run = partial(self._run, compute, logits_of, num_rows, uses_adapters)
                captured = self._capture_step(capturer, run, num_rows)
                if isinstance(captured, RefusedError):
                    self.clear()
                    refusal = captured
                    break
                self._steps[num_rows, uses_adapters] = captured
        capturer.finish()
        if refusal is None:
            logger.info(
                "captured %d decode steps of up to %d requests in %.2f s",
                len(self._steps),
                self.sizes[-1],
                time.perf_counter() - started,
            )
        return refusal

    def clear(self) -> None:
        """Drop all steps, and the memory that their graphs hold."""
        self._steps.clear()

    def step_of(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep | None:
        """Return the smallest step that holds `num_requests` requests; None if none does."""
        index = bisect_left(self.sizes, num_requests)
        if index == len(self.sizes):
            return None
        return self._steps.get((self.sizes[index], uses_adapters))

    def _run(
        self, compute: Compute, logits_of: Head, num_rows: int, uses_adapters: bool
    ) -> Computed:
        """Compute a step of padding, from the buffers that the replays will use."""
        inputs = self._inputs.gather_decode(num_rows)
        adapters = self._inputs.adapter_batch(num_rows) if uses_adapters else None
        received = None if self._received is None else self._received.rows(num_rows)
        computed = compute(inputs, adapters, received)
        if isinstance(computed, Tensor) and self._logits is not None:
            self._logits[:num_rows].copy_(logits_of(computed))  # converts to float32
        return computed

    def _capture_step(
        self, capturer: StepCapture, run: Callable[[], Computed], num_rows: int
    ) -> CapturedStep | RefusedError:
        compute = self._captured(capturer, num_rows, run)
        if isinstance(compute, RefusedError):
            return compute
        logits, sample = None, None
        if self._logits is not None:
            logits = self._logits[:num_rows]
            if self._pipeline.is_fused((), ()):
                sample = self._captured(capturer, num_rows, partial(self._sample, logits))
        if isinstance(sample, RefusedError):
            return sample
        return CapturedStep(num_rows, compute, logits, sample)

    def _captured(
        self, capturer: StepCapture, num_rows: int, run: Callable[[], ResultT]
    ) -> Callable[[], ResultT] | RefusedError:
        """Capture a function on all devices of the group; the reason if one of them cannot.

        The warm-up runs its collectives, so all devices must complete it. A capture runs nothing.
        """
        try:
            capturer.warm_up(run)
        except Exception as error:  # the edge of models, backends and samplers
            refusal = _capture_error(num_rows, error)
            if self._group.size > 1:  # the other devices are within a collective operation
                raise refusal from error
            return refusal
        captured: Callable[[], ResultT] | RefusedError
        try:
            captured = capturer.capture(run)
        except Exception as error:  # the edge of models, backends and samplers
            logger.debug("capturing a decode step failed", exc_info=True)
            captured = _capture_error(num_rows, error)
        is_captured = not isinstance(captured, RefusedError)
        if all_agree(self._group, is_captured, self._device) or not is_captured:
            return captured
        return RefusedError("they cannot be captured on another tensor-parallel rank")

    def _sample(self, logits: Tensor) -> SampledTokens:
        num_rows, tables = len(logits), self._inputs.tables
        rows = tables.sampled_rows(
            self._inputs.slots[:num_rows], self._inputs.sampled_positions[:num_rows]
        )
        sampled = self._pipeline.sample_fused(logits, rows)
        tables.token_ids[rows.slots, rows.positions] = sampled.token_ids
        return sampled


def _capture_error(num_rows: int, error: Exception) -> RefusedError:
    """Return the error of a failed capture, with its causes: the end of a capture fails as well.

    Raises:
        CapacityError: There is not enough memory.
    """
    causes = causes_of(error)
    if any(isinstance(cause, torch.OutOfMemoryError) for cause in causes):
        raise CapacityError(
            f"not enough memory to capture a decode step of {num_rows} requests; lower "
            "gpu_memory_utilization or max_cuda_graph_size, or start with --enforce-eager"
        ) from error
    reasons = "; before that, ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
    return RefusedError(
        f"a decode step of {num_rows} requests cannot be captured as a CUDA graph ({reasons}); "
        "start with --enforce-eager"
    )
