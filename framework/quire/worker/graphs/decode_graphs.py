"""The usual step, one token for each of some requests, is captured once for a few sizes.

A step takes the smallest size that holds it; what is left over is padding, which reads and writes
the spare slot and the null block. Its draw is captured apart, because a mask may come between:

    compute   gather inputs, prepare attention, model, logits in a buffer that all sizes share
    draw      draw, append the tokens to the tables; for steps that need nothing but the draw

Nothing in a captured run may depend on what the host knows of one step: the run is made before any
request is there. Masked steps draw eagerly, from the same logits.
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
from quire.interfaces.sampling import SampledRows
from quire.messages import ScheduledRequest
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.batch.step_inputs import StepInputs
from quire.worker.graphs.graph_capture import StepCapture, causes_of, no_collection
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.sampling.sampling_pipeline import SamplingPipeline

Compute = Callable[[StepInputs, AdapterBatch | None], Tensor]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step that can be repeated.

    Attributes:
        compute: Computes the logits, and returns the hidden states `[num_rows, hidden_size]`.
        logits: `[num_rows, V]` float32; any other captured step writes over them.
        sample: Draws from the logits, and appends to the tables; what it returns is written over by
            its next repetition. None: the pipeline's draw cannot be captured.
    """

    compute: Callable[[], Tensor]
    logits: Tensor
    sample: Callable[[], SampledTokens] | None


class DecodeGraphs:
    """The captured steps of one worker.

    Args:
        inputs: Gathers what a step computes.
        pipeline: Draws.
        sizes: Numbers of requests to capture for, the smallest first.
        vocab_size: V.
    """

    def __init__(
        self,
        inputs: DeviceInputs,
        pipeline: SamplingPipeline,
        sizes: Sequence[int],
        vocab_size: int,
    ) -> None:
        self.sizes = list(sizes)
        self._inputs = inputs
        self._pipeline = pipeline
        device = inputs.tables.device
        self._logits = torch.empty(sizes[-1], vocab_size, dtype=torch.float32, device=device)
        self._steps: dict[tuple[int, bool], CapturedStep] = {}

    @torch.inference_mode()
    def capture(
        self,
        way: StepCapture,
        hidden_states_of: Compute,
        logits_of: Callable[[Tensor], Tensor],
        *,
        with_adapters: bool,
    ) -> None:
        """Capture every size, the largest first, and again for steps whose requests use adapters.

        Args:
            way: How.
            hidden_states_of: The model's forward pass. Neither is kept: whoever has them has us.
            logits_of: Its head.
            with_adapters: Whether there can be any.

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
            logits.copy_(logits_of(hidden_states))  # of any floating type
            return hidden_states

        with no_collection():
            for num_rows, uses_adapters in product(reversed(self.sizes), variants):
                captured = self._capture_step(way, compute, num_rows, uses_adapters)
                self._steps[num_rows, uses_adapters] = captured
        way.finish()
        logger.info(
            "captured %d decode steps of up to %d requests, %.2f s",
            len(self._steps),
            self.sizes[-1],
            time.perf_counter() - started,
        )

    def clear(self) -> None:
        """Forget all steps, and with them the memory that graphs hold."""
        self._steps.clear()

    def step_for(
        self, requests: Sequence[ScheduledRequest]
    ) -> tuple[list[int], CapturedStep] | None:
        """Send a step's numbers; returns its slots and what computes it, or None if nothing does.

        Every request must compute one token and sample one. Its prompt is then complete, so no log
        probabilities of the prompt are due.
        """
        tables = self._inputs.tables
        slots = [share.slot for share in requests if share.num_tokens == 1 == share.num_samples]
        if not slots or len(slots) < len(requests):
            return None
        uses_adapters = bool(tables.with_adapter) and bool(tables.adapter_index[slots].max() >= 0)
        step = self.step_of(len(slots), uses_adapters=uses_adapters)
        if step is None:
            return None
        self._inputs.send_decode(slots)
        return slots, step

    def step_of(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep | None:
        """Return the smallest step that holds so many requests; None: none does."""
        index = bisect_left(self.sizes, num_requests)
        if index == len(self.sizes):
            return None
        return self._steps.get((self.sizes[index], uses_adapters))

    def _capture_step(
        self,
        way: StepCapture,
        compute: Callable[[int, bool, Tensor], Tensor],
        num_rows: int,
        uses_adapters: bool,
    ) -> CapturedStep:
        logits = self._logits[:num_rows]
        has_sampling = self._pipeline.is_fused((), ())
        try:
            return CapturedStep(
                compute=way.capture(lambda: compute(num_rows, uses_adapters, logits)),
                logits=logits,
                sample=way.capture(lambda: self._sample(num_rows, logits))
                if has_sampling
                else None,
            )
        except Exception as error:  # the edge of models, backends and samplers
            raise _refusal(num_rows, error) from error

    def _sample(self, num_rows: int, logits: Tensor) -> SampledTokens:
        tables = self._inputs.tables
        rows = SampledRows(
            slots=self._inputs.slots[:num_rows],
            positions=self._inputs.sampled_positions[:num_rows],
            columns=tables.columns,
            token_ids=tables.token_ids,
            num_prompt_tokens=tables.num_prompt_tokens,
        )
        sampled = self._pipeline.sample_fused(logits, rows)
        tables.token_ids[rows.slots, rows.positions] = sampled.token_ids
        return sampled


def _refusal(num_rows: int, error: Exception) -> CapacityError | RefusedError:
    """Return what to say of a failed capture: what came first, as its end fails as well."""
    causes = causes_of(error)
    if any(isinstance(cause, torch.OutOfMemoryError) for cause in causes):
        return CapacityError(
            f"there is no memory to capture a step of {num_rows} requests; lower "
            "gpu_memory_utilization or max_cuda_graph_size, or start with --enforce-eager"
        )
    told = "; before that, ".join(f"{type(cause).__name__}: {cause}" for cause in causes)
    return RefusedError(
        f"a step of {num_rows} requests cannot be captured as a CUDA graph ({told}); start with "
        "--enforce-eager"
    )
