"""Interface of the decode steps that are replayed, and of the buffers of their inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from quire.interfaces.model import StageTensors
from quire.messages import ScheduledRequest
from quire.worker.batch.slots import SlotTables
from quire.worker.graphs.received_tensors import ReceivedTensors
from quire.worker.sampling.sampled_tokens import SampledTokens
from quire.worker.stage_forward import Computed, first_rows


class DecodeInputs(Protocol):
    """Buffers of the inputs of decode steps."""

    tables: SlotTables

    def send_decode(self, slots: Sequence[int]) -> None:
        """Send the requests of a step, one token each, for the next replay."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A step that can be replayed.

    Attributes:
        num_rows: Number of requests, padding included.
        compute: Function that computes the logits, and returns the hidden states
            `[num_rows, hidden_size]`; on an earlier stage, the tensors for the next one.
        logits: Logits of this device's shard of the vocabulary, `[num_rows, M]` float32; any other
            captured step overwrites them. None: the stage has none.
        sample: Function that samples from the logits and appends to the tables; its next replay
            overwrites the returned tokens. None: the stage does not sample, or the pipeline's
            sampling cannot be captured.
    """

    num_rows: int
    compute: Callable[[], Computed]
    logits: Tensor | None
    sample: Callable[[], SampledTokens] | None


class StepGraphs(ABC):
    """The decode steps of one worker that can be replayed.

    Args:
        inputs: Buffers of the inputs of a step.
        received: Buffers for the tensors of the stage before; None for the first stage.
    """

    def __init__(self, inputs: DecodeInputs, received: ReceivedTensors | None) -> None:
        self._decode_inputs = inputs
        self._received = received

    @abstractmethod
    def step_of(self, num_requests: int, *, uses_adapters: bool) -> CapturedStep | None:
        """Return the smallest step that holds `num_requests` requests; None if none does."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all steps, and the memory that their graphs hold."""

    def step_for(
        self, requests: Sequence[ScheduledRequest]
    ) -> tuple[list[int], CapturedStep] | None:
        """Send a step's inputs, and return its slots and captured step; None if none fits.

        Each request must have one scheduled token and sample one. Its prompt is then complete, so
        no prompt log probabilities are needed.
        """
        tables = self._decode_inputs.tables
        slots = [
            request.slot for request in requests if request.num_tokens == 1 == request.num_samples
        ]
        if not slots or len(slots) < len(requests):
            return None
        uses_adapters = bool(tables.with_adapter) and bool(tables.adapter_index[slots].max() >= 0)
        step = self.step_of(len(slots), uses_adapters=uses_adapters)
        if step is None:
            return None
        self._decode_inputs.send_decode(slots)
        return slots, step

    def replay(
        self, step: CapturedStep, num_requests: int, received: StageTensors | None
    ) -> Computed:
        """Compute a step whose inputs were sent, and return its output without padding."""
        if self._received is not None and received is not None:
            self._received.fill(received, step.num_rows)
        return first_rows(step.compute(), num_requests)
