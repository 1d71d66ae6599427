"""Copies between KV blocks and host memory, on a separate CUDA stream.

On a CPU a copy is complete when the call returns. On a GPU it is queued on its own stream, after
all work that was launched before, and an event marks its completion.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from quire.interfaces.kv_transfer import BlockPiece


class BlockCopies:
    """Copies of cross-group blocks of one KV cache.

    Args:
        pieces: Pieces of a cross-group block.
        tensors: KV cache, as in `KVStoreWorker.attach`.
    """

    def __init__(self, pieces: Sequence[BlockPiece], tensors: Sequence[Tensor]) -> None:
        self._pieces = pieces
        self._tensors = tensors
        on_cuda = [tensor.device for tensor in tensors if tensor.device.type == "cuda"]
        self._stream = _stream(on_cuda[0]) if on_cuda else None

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Run copies after the work that is already launched, concurrently with later work."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def mark(self) -> torch.cuda.Event | None:
        """Return an event for the completion of all copies so far; None if they are complete."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self) -> None:
        """Wait until all copies are complete."""
        if self._stream is not None:
            self._stream.synchronize()

    def save(self, block_ids: Sequence[int], slot: Tensor) -> None:
        """Copy from blocks to a slot, except from block 0."""
        for stored, block in self._pairs(block_ids, slot):
            stored.copy_(block, non_blocking=True)

    def load(self, slot: Tensor, block_ids: Sequence[int]) -> None:
        """Copy from a slot to blocks, except to block 0."""
        for stored, block in self._pairs(block_ids, slot):
            block.copy_(stored, non_blocking=True)

    def _pairs(
        self, block_ids: Sequence[int], slot: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:  # both [num_bytes] uint8
        for piece in self._pieces:
            block_id = block_ids[piece.group]
            if block_id:
                stored = slot[piece.offset : piece.offset + piece.num_bytes]
                yield stored, self._tensors[piece.tensor][block_id]


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch has no types there
