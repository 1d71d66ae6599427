"""Sampler steps run where the host cannot learn a value: a step that waits for the device fails."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import SampledRows
from quire.testing.sampling.sampled_rows import on_device

META = torch.device("meta")  # tensors with a shape and no data: reading a value raises


def run_without_data(
    run: Callable[[Tensor, SampledRows], Tensor], logits: Tensor, rows: SampledRows
) -> None:
    """Call a step with tensors that have no values.

    Only a step that never looks at a value, and never sizes a tensor by one, can run so. This does
    not see a copy from ordinary memory to the device, such as `torch.tensor(list, device=...)`, nor
    what launches of kernels do, which are left out: `run_without_waiting` does, on a GPU.
    """
    try:
        with _no_launches():
            run(logits.to(META), on_device(rows, META))
    except (RuntimeError, NotImplementedError) as error:
        pytest.fail(f"the step needs values on the host, so it waits for the device: {error}")


def run_without_waiting(
    run: Callable[[Tensor, SampledRows], Tensor], logits: Tensor, rows: SampledRows
) -> None:
    """Call a step on a GPU, where torch raises if the host waits; elsewhere do nothing."""
    if logits.device.type != "cuda":
        return
    rows = on_device(rows, logits.device)
    run(logits.clone(), rows)  # compiles what is compiled at first use
    given = logits.clone()
    with waiting_refused():
        run(given, rows)


@contextmanager
def waiting_refused() -> Iterator[None]:
    """Let torch raise where the host would wait for the GPU."""
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode("default")


def _set_sync_debug_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see every wait
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _no_launches() -> Iterator[None]:
    """Leave out the Triton kernels: they run on the device, and the host does not wait."""
    if "triton" not in sys.modules:  # then the step has none
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with pytest.MonkeyPatch.context() as patch:
        for kind in (InterpretedFunction, JITFunction):
            patch.setattr(kind, "run", _leave_out)
        yield


def _leave_out(kernel: Any, *args: Any, **kwargs: Any) -> None:
    del kernel, args, kwargs
