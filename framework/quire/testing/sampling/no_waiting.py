"""Runs of sampler steps that fail if the host waits for the device."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.interfaces.sampling import SampledRows, SamplerCapabilities
from quire.testing.sampling.sampled_rows import on_device

META = torch.device("meta")  # tensors with a shape but no data: reading a value raises


def skip_without_device(capabilities: SamplerCapabilities) -> None:
    """Skip the test of a step in C++: it runs on the CPU, where there is no device to wait for."""
    if capabilities.needs_kernels == "native":
        pytest.skip("native kernels run on the CPU, where there is no device to wait for")


def run_without_data(
    run: Callable[[Tensor, SampledRows], object], logits: Tensor, rows: SampledRows
) -> None:
    """Call a sampler step with tensors on the meta device, which have no data.

    It fails if the step reads a value, or creates a tensor whose size depends on one. It does not
    detect a copy from host memory to the device, such as `torch.tensor(list, device=...)`, and it
    skips kernel launches. `run_without_sync` covers both, on a GPU.
    """
    try:
        with _no_launches():
            run(logits.to(META), on_device(rows, META))
    except (RuntimeError, NotImplementedError) as error:
        pytest.fail(f"the step reads a value on the host, so it would wait for the device: {error}")


def run_without_sync(
    run: Callable[[Tensor, SampledRows], object], logits: Tensor, rows: SampledRows
) -> None:
    """Call a sampler step on a GPU, where torch raises if the host waits; elsewhere do nothing."""
    if logits.device.type != "cuda":
        return
    rows = on_device(rows, logits.device)
    run(logits.clone(), rows)  # compiles kernels at first use
    given = logits.clone()
    with sync_refused():
        run(given, rows)


@contextmanager
def sync_refused() -> Iterator[None]:
    """Make torch raise where the host would wait for the GPU."""
    _set_sync_debug_mode("error")
    try:
        yield
    finally:
        _set_sync_debug_mode("default")


def _set_sync_debug_mode(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it does not detect every wait
        torch.cuda.set_sync_debug_mode(mode)


@contextmanager
def _no_launches() -> Iterator[None]:
    """Skip Triton kernel launches: they run on the device, and the host does not wait."""
    if "triton" not in sys.modules:  # then the step has no Triton kernels
        yield
        return
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    with pytest.MonkeyPatch.context() as patch:
        for kind in (InterpretedFunction, JITFunction):
            patch.setattr(kind, "run", _skip)
        yield


def _skip(kernel: Any, *args: Any, **kwargs: Any) -> None:
    del kernel, args, kwargs
