"""Fixed buffers for the tensors that a pipeline stage receives, from which its graphs compute."""

from __future__ import annotations

from quire.interfaces.model import StageTensors
from quire.worker.stage_forward import stage_tensors, tensors_of


class ReceivedTensors:
    """Buffers at fixed addresses.

    Args:
        example: Tensors of the stage before, with any number of rows.
        max_rows: Number of rows of the largest graph.
    """

    def __init__(self, example: StageTensors, max_rows: int) -> None:
        self._buffers = [each.new_zeros(max_rows, each.shape[1]) for each in tensors_of(example)]

    def fill(self, received: StageTensors, num_rows: int) -> None:
        """Copy what was received; the rows after it, up to `num_rows`, are padding.

        Layers may write to the buffers, so padding is zeroed in each step: it would grow.
        """
        for buffer, tensor in zip(self._buffers, tensors_of(received), strict=True):
            buffer[: len(tensor)] = tensor
            if len(tensor) < num_rows:
                buffer[len(tensor) : num_rows] = 0

    def rows(self, num_rows: int) -> StageTensors:
        """Return the first rows of the buffers, the input of a graph of that size."""
        return stage_tensors(buffer[:num_rows] for buffer in self._buffers)
