"""Captured decode steps: one token per request, captured once for a few batch sizes.

A step uses the smallest size that holds it. The remaining rows are padding, which reads and writes
the padding slot and the null block. Sampling is captured apart, because a mask may come between:

    compute   gather inputs, prepare attention, model, logits in a buffer that all sizes share
    sample    sample, append the tokens to the tables; for steps whose sampling is fully fused

Nothing in a captured step may depend on values that the host has for one step only: the capture
happens before the first request. Masked steps are sampled eagerly, from the same logits.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from quire.errors import CapacityError, RefusedError
from quire.interfaces.lora import AdapterBatch
from quire.messages import ScheduledRequest
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs.graph_capture import StepCapture, causes_of, gc_disabled
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline

Compute = Callable[[StepInputs, AdapterBatch | None], Tensor]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step that can be replayed.

    Attributes:
        compute: Function that computes the logits and returns the hidden states
            `[num_rows, hidden_size]`.
        logits: Logits of this device's shard of the vocabulary, `[num_rows, M]` float32; any other
            captured step overwrites them.
        sample: Function that samples from the logits and appends to the tables; its next replay
            overwrites the returned tokens. None: the pipeline's sampling cannot be captured.
    """

    compute: Callable[[], Tensor]
    logits: Tensor
    sample: Callable[[], SampledTokens] | None


class DecodeGraphs:
    """The captured decode steps of one worker.

    Args:
        inputs: Buffers that gather the inputs of a step.
        pipeline: Sampling pipeline.
        sizes: Numbers of requests to capture for, in ascending order.
    """

    def __init__(
        self, inputs: DeviceInputs, pipeline: SamplingPipeline, sizes: Sequence[int]
    ) -> None:
        self.sizes = list(sizes)
        self._inputs = inputs
        self._pipeline = pipeline
        shape = (sizes[-1], len(pipeline.vocabulary.token_ids))
        self._logits = torch.empty(shape, dtype=torch.float32, device=inputs.tables.device)
        self._steps: dict[tuple[int, bool], CapturedStep] = {}

    @torch.inference_mode()
    def capture(
        self,
        capturer: StepCapture,
        hidden_states_of: Compute,
        logits_of: Callable[[Tensor], Tensor],
        *,
        with_adapters: bool,
    ) -> None:
        """Capture every size, the largest first, and again for steps whose requests use adapters.

        Args:
            capturer: Step capture to use.
            hidden_states_of: Forward pass of the model. Neither function is stored, to avoid a
                reference cycle.
            logits_of: LM head of the model.
            with_adapters: Whether requests can use adapters.

        Raises:
            CapacityError: There is not enough memory.
            RefusedError: A part of the step cannot be captured.
        """
        started = time.perf_counter()
        self._inputs.send_decode([])  # all rows are padding
        variants = (False, True) if with_adapters else (False,)

        def compute(num_rows: int, uses_adapters: bool, logits: Tensor) -> Tensor:
            inputs = self._inputs.gather_decode(num_rows)
            adapters = self._inputs.adapter_batch(num_rows) if uses_adapters else None
            hidden_states = hidden_states_of(inputs, adapters)
            logits.copy_(logits_of(hidden_states))  # converts to float32
            return hidden_states

        with gc_disabled():
            for num_rows, uses_adapters in product(reversed(self.sizes), variants):
                captured = self._capture_step(capturer, compute, num_rows, uses_adapters)
                self._steps[num_rows, uses_adapters] = captured
        capturer.finish()
        logger.info(
            "captured %d decode steps of up to %d requests in %.2f s",
            len(self._steps),
            self.sizes[-1],
            time.perf_counter() - started,
        )

    def clear(self) -> None:
        """Drop all steps, and the memory that their graphs hold."""
        self._steps.clear()

    def step_for(
        self, requests: Sequence[ScheduledRequest]
    ) -> tuple[list[int], CapturedStep] | None:
        """Send a step's inputs, and return its slots and captured step; None if none fits.

        Each request must have one scheduled token and sample one. Its prompt is then complete, so
        no prompt log probabilities are needed.
        """
        tables = self._inputs.tables
        slots = [
            request.slot for request in requests if request.num_tokens == 1 == request.num_samples
        ]
        if not slots or len(slots) < len(requests):
            return None
        uses_adapters = bool(tables.with_adapter) and bool(tables.adapter_index[slots].max() >= 0)
        step = self.step_of(len(slots), uses_adapters=uses_adapters)
        if step is None:
            return None
        self._inputs.send_decode(slots)
        return slots, step

    def step_of(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep | None:
        """Return the smallest step that holds `num_requests` requests; None if none does."""
        index = bisect_left(self.sizes, num_requests)
        if index == len(self.sizes):
            return None
        return self._steps.get((self.sizes[index], uses_adapters))

    def _capture_step(
        self,
        capturer: StepCapture,
        compute: Callable[[int, bool, Tensor], Tensor],
        num_rows: int,
        uses_adapters: bool,
    ) -> CapturedStep:
        logits = self._logits[:num_rows]
        has_sampling = self._pipeline.is_fused((), ())
        try:
            return CapturedStep(
                compute=capturer.capture(lambda: compute(num_rows, uses_adapters, logits)),
                logits=logits,
                sample=capturer.capture(lambda: self._sample(num_rows, logits))
                if has_sampling
                else None,
            )
        except Exception as error:  # the edge of models, backends and samplers
            raise _capture_error(num_rows, error) from error

    def _sample(self, num_rows: int, logits: Tensor) -> SampledTokens:
        tables = self._inputs.tables
        rows = tables.sampled_rows(
            self._inputs.slots[:num_rows], self._inputs.sampled_positions[:num_rows]
        )
        sampled = self._pipeline.sample_fused(logits, rows)
        tables.token_ids[rows.slots, rows.positions] = sampled.token_ids
        return sampled


def _capture_error(num_rows: int, error: Exception) -> CapacityError | RefusedError:
    """Return the error of a failed capture, with its causes: the end of a capture fails as well."""
    causes = causes_of(error)
    if any(isinstance(cause, torch.OutOfMemoryError) for cause in causes):
        return CapacityError(
            f"not enough memory to capture a decode step of {num_rows} requests; lower "
            "gpu_memory_utilization or max_cuda_graph_size, or start with --enforce-eager"
        )
    reasons = "; before that, ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
    return RefusedError(
        f"a decode step of {num_rows} requests cannot be captured as a CUDA graph ({reasons}); "
        "start with --enforce-eager"
    )
