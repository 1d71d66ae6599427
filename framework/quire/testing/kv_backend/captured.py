"""Replay of launches: as a CUDA graph, or on a CPU with host-device synchronization refused.

Without a GPU this detects `item`, `tolist`, `numpy`, `cpu` and operators whose result size depends
on data. It cannot detect a copy between host and device (`torch.tensor(list, device=...)`,
`to("cpu")`), because there is one memory, nor what C code does by itself.
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

SYNC_OPERATORS = (
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique2",
)
SYNC_METHODS = ("tolist", "numpy", "cpu", "__array__")


def replayable(launch: Callable[[], Tensor], device: str) -> Callable[[], Tensor]:
    """Return a function that runs a launch again, over the same buffers with other contents."""
    return _captured(launch) if device == "cuda" else lambda: _run_without_sync(launch)


def refill(fixed: StepLayout, now: StepLayout) -> None:
    """Copy a step of the same sizes to the buffers of a captured step."""
    fixed.query_start.copy_(now.query_start)
    fixed.seq_lens.copy_(now.seq_lens)
    fixed.slot_mapping.copy_(now.slot_mapping)
    fixed.block_table.zero_()
    fixed.block_table[:, : now.block_table.shape[1]] = now.block_table


@contextmanager
def sync_refused() -> Iterator[None]:
    """Fail an assertion on any operator or method that would make the host wait for the device."""
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
        """Run an operator, or fail if it waits for the device."""
        del types
        name = func.name().split(".")[0]
        is_sync = name in SYNC_OPERATORS or _is_sized_by_data(name, args, kwargs or {})
        assert not is_sync, f"a captured step must not wait for the device, but runs {name}"
        return func(*args, **(kwargs or {}))


def _is_sized_by_data(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in ("aten::index", "aten::index_put", "aten::index_put_"):
        return False
    masks = [index for index in args[1] if index is not None and index.dtype == torch.bool]
    is_fill = name != "aten::index" and args[2].numel() == 1  # fill by a mask: no count needed
    return bool(masks) and not is_fill


class _Methods(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a torch function, or fail if it waits; calls by Triton's interpreter are allowed."""
        del types
        name = getattr(func, "__name__", "")
        caller = sys._getframe(1).f_globals.get("__name__", "")
        is_sync = name in SYNC_METHODS and not caller.startswith("triton.")
        assert not is_sync, f"a captured step must not copy data to the host, but calls {name}()"
        return func(*args, **(kwargs or {}))


def _run_without_sync(launch: Callable[[], Tensor]) -> Tensor:
    with sync_refused():
        return launch()


def _captured(launch: Callable[[], Tensor]) -> Callable[[], Tensor]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles kernels, which is not allowed during a capture
        launch()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = launch()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay
