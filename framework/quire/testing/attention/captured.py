"""What was launched once is run again: as a CUDA graph, or by a host that may ask for nothing.

Without a GPU this notices `item`, `tolist`, `numpy`, `cpu` and the operators that size their result
by data. It cannot notice a copy between host and device (`torch.tensor(list, device=...)`,
`to("cpu")`), for there is one memory, nor what C code does by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from quire.interfaces.attention import StepLayout

WAITING_FOR_KV_LOOKUP = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique2",
)
BRINGING = ("tolist", "numpy", "cpu", "__array__")


def repeated(launch: Callable[[], Tensor], device: str) -> Callable[[], Tensor]:
    """Return what runs a launch again, over the same buffers with other numbers in them."""
    return _captured(launch) if device == "cuda" else lambda: _unasked(launch)


def refill(fixed: StepLayout, now: StepLayout) -> None:
    """Write another step of the same sizes into the buffers of a captured one."""
    fixed.query_start.copy_(now.query_start)
    fixed.seq_lens.copy_(now.seq_lens)
    fixed.slot_mapping.copy_(now.slot_mapping)
    fixed.block_table.zero_()
    fixed.block_table[:, : now.block_table.shape[1]] = now.block_table


@contextmanager
def asking_refused() -> Iterator[None]:
    """Inside, what the host must wait for fails an assertion."""
    with _Methods(), _Operators():  # type: ignore[no-untyped-call]
        yield


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operator, or refuse it."""
        del types
        name = func.name().split(".")[0]
        is_asking = name in WAITING_FOR_KV_LOOKUP or _is_sized_by_data(name, args, kwargs or {})
        assert not is_asking, f"a captured step asks the device for a number by {name}"
        return func(*args, **(kwargs or {}))


def _is_sized_by_data(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in ("aten::index", "aten::index_put", "aten::index_put_"):
        return False
    masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
    is_fill = name != "aten::index" and args[2].numel() == 1  # by a mask, without counting
    return bool(masks) and not is_fill


class _Methods(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or refuse it; Triton's interpreter is the device."""
        del types
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_globals.get("__name__", "")
        is_asking = name in BRINGING and not caller.startswith("triton.")
        assert not is_asking, f"a captured step asks the device for numbers by {name}()"
        return func(*args, **(kwargs or {}))


def _unasked(launch: Callable[[], Tensor]) -> Tensor:
    with asking_refused():
        return launch()


def _captured(launch: Callable[[], Tensor]) -> Callable[[], Tensor]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles kernels, which a capture may not
        launch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
