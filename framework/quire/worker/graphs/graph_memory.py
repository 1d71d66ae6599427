"""Memory for what a recorded step allocates: it stays where it is, and is taken again in turn.

A step's tensors live as long as when they came from the allocator, so what one layer has let go of
the next one takes, while it is in the caches. All recorded steps share the memory, because only one
runs at a time, and what it leaves is read before the next one.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quire.machine.pages import own_pages
from quire.native.recording import Recording

CHUNK_BYTES = 2**22
ALIGNMENT = 64
ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
    }
)
IN_PLACE = frozenset(
    {torch.ops.aten.mul_.Tensor, torch.ops.aten.mul_.Scalar, torch.ops.aten.add_.Tensor}
)
OUT_OF_PLACE = frozenset({torch.ops.aten.embedding.default, torch.ops.aten.to.dtype})
UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class StepMemory:
    """What all recorded steps of a worker share."""

    def __init__(self) -> None:
        self._chunks: list[mmap.mmap] = []

    def chunk(self, index: int, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Return the chunk of this index, or the next one that has so many bytes; and its index."""
        while index < len(self._chunks) and len(self._chunks[index]) < num_bytes:
            index += 1
        if index == len(self._chunks):
            self._chunks.append(own_pages(max(CHUNK_BYTES, num_bytes)))
        return self._chunks[index], index

    def clear(self) -> None:
        """Fill all of it with zeros, which are safe as indices, too."""
        for chunk in self._chunks:
            torch.frombuffer(chunk, dtype=torch.uint8).zero_()


class Blocks:
    """What one step takes of it, from the beginning on."""

    def __init__(self, memory: StepMemory) -> None:
        self._memory = memory
        self._chunk, self._end = -1, 0  # where nothing has been taken yet
        self._free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by size, last one first
        self._alive: dict[tuple[int, int], int] = {}  # addresses

    @property
    def addresses(self) -> set[int]:
        """Of what something still refers to."""
        return set(self._alive.values())

    def take(self, num_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """Return memory that is free again once nothing refers to it."""
        size = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        place = self._free[size].pop() if self._free[size] else self._next(size)
        chunk, _ = self._memory.chunk(place[0], 0)
        block = (ctypes.c_char * num_bytes).from_buffer(chunk, place[1])
        self._alive[place] = ctypes.addressof(block)
        weakref.finalize(block, self._let_go, place, size).atexit = False
        return block

    def _let_go(self, place: tuple[int, int], size: int) -> None:
        del self._alive[place]
        self._free[size].append(place)

    def _next(self, size: int) -> tuple[int, int]:
        """Return a place behind all that were taken before: its chunk, and where in that."""
        begin = self._end
        if self._chunk < 0 or begin + size > len(self._memory.chunk(self._chunk, 0)[0]):
            _, self._chunk = self._memory.chunk(self._chunk + 1, size)
            begin = 0
        self._end = begin + size
        return self._chunk, begin


class InStepMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets torch allocate there, and tells a recording of whatever else torch computes meanwhile.

    The few operators that layers use around compiled functions are noted like calls of those.

    Attributes:
        operands: Addresses of the memory that those need.
    """

    def __init__(self, blocks: Blocks, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks = blocks
        self._recording = recording
        self.operands: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Do not load torch's compiler, a second and 140 MB, to keep it away from what we run."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator."""
        del types
        operator = functools.partial(func, *args, **(kwargs or {}))
        result = operator()
        if func in ALLOCATIONS:
            return self._moved(result)
        if (func.is_view or func is UNSAFE_VIEW) and _is_view(result, args):
            return result
        if func in IN_PLACE:
            self._recording.note(operator, ())
        elif func in OUT_OF_PLACE:
            result = self._moved(result).copy_(result)
            self._recording.note(lambda: result.copy_(operator()), ())
        else:
            self._recording.refuse(f"{func} is computed by torch")
            return result
        self.operands |= {_address(one) for one in (*args, result) if isinstance(one, Tensor)}
        return result

    def _moved(self, allocated: Tensor) -> Tensor:
        """Return memory of ours for a tensor that nobody has written to yet."""
        is_plain = allocated.device.type == "cpu" and allocated.is_contiguous()
        if not is_plain or not allocated.numel():
            self._recording.refuse(f"it allocates {list(allocated.shape)} on {allocated.device}")
            return allocated
        block = self._blocks.take(allocated.nbytes)
        return torch.frombuffer(block, dtype=allocated.dtype).view(allocated.shape)


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Whether an operator that returns views, or else copies (`reshape`, `to`), returned views."""
    results = result if isinstance(result, (list, tuple)) else [result]
    given = {_address(arg) for arg in args if isinstance(arg, Tensor)}
    return all(_address(made) in given for made in results)


def _address(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins, of which it may be a view."""
    return tensor.untyped_storage().data_ptr()
