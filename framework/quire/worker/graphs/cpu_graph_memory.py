"""Memory of CPU graphs: fixed addresses for the tensors that a traced step allocates.

Tensors live as long as with torch's allocator, so memory that one layer has freed is reused by the
next one while it is in the CPU caches. All graphs share the memory, because only one runs at a time
and its output is read before the next one.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from quire.machine.pages import own_pages
from quire.native.tracing import CallTrace

CHUNK_BYTES = 2**22
ALIGNMENT = 64


def _operators(*names: str) -> frozenset[Any]:
    """Return operators of torch by their schema names, such as `add.Tensor`."""
    paths = (name.split(".") for name in names)
    return frozenset(getattr(getattr(torch.ops.aten, name), overload) for name, overload in paths)


ALLOCATIONS = _operators(
    "empty.memory_format", "empty_like.default", "empty_strided.default", "new_empty.default"
)
IN_PLACE = _operators(
    *("add_.Tensor", "sub_.Tensor", "mul_.Tensor", "mul_.Scalar", "div_.Tensor"),
    *("addcmul_.default", "clamp_.default", "masked_fill_.Scalar", "copy_.default"),
    *("neg_.default", "relu_.default", "sigmoid_.default", "silu_.default", "tanh_.default"),
)
OUT_OF_PLACE = _operators(
    *("add.Tensor", "sub.Tensor", "mul.Tensor", "mul.Scalar", "div.Tensor", "addcmul.default"),
    *("lt.Scalar", "ge.Scalar", "__or__.Tensor", "where.self", "masked_fill.Scalar"),
    *("abs.default", "clamp.default", "minimum.default", "maximum.default", "neg.default"),
    *("erf.default", "exp.default", "log.default", "log1p.default", "tanh.default"),
    *("floor.default", "reciprocal.default", "rsqrt.default", "sqrt.default", "square.default"),
    *("gelu.default", "relu.default", "sigmoid.default", "silu.default"),
    *("layer_norm.default", "rms_norm.default", "mean.dim", "sum.dim_IntList"),
    *("cat.default", "embedding.default", "index_select.default", "roll.default", "to.dtype"),
    *("clone.default", "contiguous.default", "reshape.default"),
    *("argmax.default", "gather.default", "stack.default"),
)
UNSAFE_VIEW = torch.ops.aten._unsafe_view.default


class GraphMemory:
    """Memory that all CPU graphs of a worker share."""

    def __init__(self) -> None:
        self._chunks: list[mmap.mmap] = []

    def chunk(self, index: int, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Return the first chunk from `index` on with at least `num_bytes`, and its index."""
        while index < len(self._chunks) and len(self._chunks[index]) < num_bytes:
            index += 1
        if index == len(self._chunks):
            self._chunks.append(own_pages(max(CHUNK_BYTES, num_bytes)))
        return self._chunks[index], index

    def clear(self) -> None:
        """Fill all memory with zeros, which are also valid as indices."""
        for chunk in self._chunks:
            torch.frombuffer(chunk, dtype=torch.uint8).zero_()


class GraphAllocator:
    """Allocator of one graph's tensors in the shared memory, from its start on."""

    def __init__(self, memory: GraphMemory) -> None:
        self._memory = memory
        self._chunk, self._end = -1, 0  # start of the unused memory
        self._free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by size, as a stack
        self._alive: dict[tuple[int, int], int] = {}  # location -> address

    @property
    def addresses(self) -> set[int]:
        """Addresses of the allocations that are still referenced."""
        return set(self._alive.values())

    def allocate(self, num_bytes: int) -> ctypes.Array[ctypes.c_char]:
        """Return memory that is freed when it is no longer referenced."""
        size = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        location = self._free[size].pop() if self._free[size] else self._extend(size)
        chunk, _ = self._memory.chunk(location[0], 0)
        block = (ctypes.c_char * num_bytes).from_buffer(chunk, location[1])
        self._alive[location] = ctypes.addressof(block)
        weakref.finalize(block, self._release, location, size).atexit = False
        return block

    def _release(self, location: tuple[int, int], size: int) -> None:
        del self._alive[location]
        self._free[size].append(location)

    def _extend(self, size: int) -> tuple[int, int]:
        """Return a location behind all earlier ones: chunk index, and offset in the chunk."""
        begin = self._end
        if self._chunk < 0 or begin + size > len(self._memory.chunk(self._chunk, 0)[0]):
            _, self._chunk = self._memory.chunk(self._chunk + 1, size)
            begin = 0
        self._end = begin + size
        return self._chunk, begin


class TracingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that moves torch's allocations to graph memory, and traces its operators.

    The operators that layers use around compiled functions are traced like calls of those. Any
    other one, such as a matrix product, makes the trace unavailable. Compiled functions are not
    called while they are traced, so their outputs hold anything; integers are zeros, because torch
    may use them as indices.

    Attributes:
        operands: Addresses of the storages that the traced operators use.
    """

    def __init__(self, allocator: GraphAllocator, trace: CallTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocator = allocator
        self._trace = trace
        self.operands: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that torch does not import its compiler (a second and 140 MB)."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Trace an operator, and run it unless it is in place."""
        del types
        operator = functools.partial(func, *args, **(kwargs or {}))
        result = args[0] if func in IN_PLACE else operator()
        if func in ALLOCATIONS:
            return self._relocated(result)
        if (func.is_view or func is UNSAFE_VIEW) and _is_view(result, args):
            return result
        if func in IN_PLACE:
            self._trace.append(operator, ())
        elif func in OUT_OF_PLACE:
            result = self._relocated(result).copy_(result)
            self._trace.append(_into(result, func, operator), ())
        else:
            self._trace.mark_unreplayable(f"{func} is computed by torch")
            return result
        self.operands |= set(map(_address, _tensors([args, kwargs, result])))
        return result

    def _relocated(self, allocated: Tensor) -> Tensor:
        """Return a tensor in graph memory in place of a newly allocated, unwritten one."""
        is_plain = allocated.device.type == "cpu" and allocated.is_contiguous()
        if not is_plain or not allocated.numel():
            self._trace.mark_unreplayable(
                f"it allocates {list(allocated.shape)} on {allocated.device}"
            )
            return allocated
        block = self._allocator.allocate(allocated.nbytes)
        relocated = torch.frombuffer(block, dtype=allocated.dtype).view(allocated.shape)
        return relocated if relocated.is_floating_point() else relocated.zero_()


def _is_view(result: Any, args: Sequence[Any]) -> bool:
    """Whether an operator that may return views or copies (`reshape`, `to`) returned views."""
    results = result if isinstance(result, (list, tuple)) else [result]
    given = set(map(_address, _tensors(args)))
    return all(_address(made) in given for made in results)


def _into(result: Tensor, func: Any, operator: functools.partial[Any]) -> Callable[[], object]:
    """Return a function that computes an out-of-place operator to the memory of its result."""
    variant = _out_variant(func)
    if variant is None:
        return lambda: result.copy_(operator())
    return functools.partial(variant, *operator.args, **operator.keywords, out=result)


@functools.cache
def _out_variant(func: Any) -> Any | None:
    """Return the overload of an operator with the same arguments and `out`, if it has one."""
    arguments = [(one.name, str(one.type)) for one in func._schema.arguments]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        given = [(one.name, str(one.type)) for one in overload._schema.arguments]
        if given == [*arguments, ("out", "Tensor")]:
            return overload
    return None


def _tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors among an operator's arguments, those in lists and mappings included."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _tensors(value)


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()
