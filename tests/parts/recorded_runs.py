"""A CUDA graph without a GPU: the operators and launches of a run are recorded and replayed.

Every torch operator and every launch of an interpreted kernel is recorded with its arguments. A
replay runs no Python of the run: a host-side value in an argument stays as it was, and so does a
tensor that was made from such values. Reading a tensor's value on the host is an error, as in the
capture of a graph.

Ranks that are threads may record at the same time. The interpreter has state of its own, so one of
them launches at a time; between launches they may wait for each other in a collective, which is
recorded as one call.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import InterpretedFunction

from quire.layers import TensorParallelGroup
from quire.worker.graphs.graph_capture import StepCapture

WAITING_OPERATORS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "_unique2",
    "is_nonzero",
)


class _Recording(TorchDispatchMode):
    def __init__(self, steps: list[Callable[[], None]]) -> None:
        super().__init__()
        self.steps = steps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().partition("::")[2].partition(".")[0]
        if name in WAITING_OPERATORS:
            raise RuntimeError(f"a captured run reads a value from the device: {func.name()}")
        result = func(*args, **kwargs)
        self.steps.append(_repetition(func, args, kwargs, result))
        return result


def _repetition(func: Any, args: Any, kwargs: Any, result: Any) -> Callable[[], None]:
    if func._schema.is_mutable:
        return lambda: func(*args, **kwargs)
    inputs = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
    outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    fresh = [index for index, x in enumerate(outputs) if _storage(x) not in inputs]

    def repeat() -> None:
        again = [x for x in tree_leaves(func(*args, **kwargs)) if isinstance(x, Tensor)]
        for index in fresh:
            outputs[index].copy_(again[index])

    return repeat if fresh else lambda: None


def _storage(tensor: Tensor) -> int:
    if tensor.is_mkldnn:  # a reordered weight
        return id(tensor)
    return tensor.untyped_storage().data_ptr()


class RecordedRuns(StepCapture):
    """Records runs, and counts the replays of each."""

    def __init__(self) -> None:
        self.num_replays: list[int] = []
        self.is_finished = False

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        steps: list[Callable[[], None]] = []
        result = _record(run, steps)
        assert steps, "nothing was done"
        index = len(self.num_replays)
        self.num_replays.append(0)

        def repeat() -> Any:
            self.num_replays[index] += 1
            for step in steps:
                step()
            return result

        return repeat

    def finish(self) -> None:
        self.is_finished = True


def _record(run: Callable[[], Any], steps: list[Callable[[], None]]) -> Any:
    _recorder.steps = steps
    try:
        with torch.inference_mode(), _Recording(steps):
            return run()
    finally:
        _recorder.steps = None


class RecordedGroup(TensorParallelGroup):
    """Group whose collectives are recorded, as those of NCCL are captured."""

    def __init__(self, group: TensorParallelGroup) -> None:
        self.rank, self.size = group.rank, group.size
        self._group = group

    def all_reduce(self, x: Tensor) -> Tensor:
        return _recorded(lambda: self._group.all_reduce(x))

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        return _recorded(lambda: self._group.all_gather(x, dim))


def _recorded(call: Callable[[], Tensor]) -> Tensor:
    if _recorder.steps is None:
        return call()
    with _disable_current_modes():
        result = call()
    _recorder.steps.append(lambda: result.copy_(call()))  # type: ignore[arg-type, return-value]
    return result


class _Recorder(threading.local):
    steps: list[Callable[[], None]] | None = None


_recorder = _Recorder()
_launching = threading.Lock()
_launch = InterpretedFunction.run


def _recorded_launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    def again() -> None:
        with _launching:
            _launch(self, *args, grid=grid, warmup=warmup, **kwargs)

    if _recorder.steps is None:
        return again()
    with _disable_current_modes():  # what the interpreter itself does is no part of the run
        again()
    _recorder.steps.append(again)
    return None


InterpretedFunction.run = _recorded_launch
