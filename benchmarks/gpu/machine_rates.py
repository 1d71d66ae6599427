"""The two ceilings of a device: how fast it copies, and how fast it multiplies in bfloat16."""

from __future__ import annotations

import platform
from typing import Any

import torch
from timing import eager_s

COPIED_BYTES = {"cuda": 2**32, "cpu": 2**24}
MATRIX_SIZE = {"cuda": 8192, "cpu": 128}


def measure_rates(device: torch.device) -> dict[str, Any]:
    """Return the rates of this device, and what it is."""
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "transformers": _version("transformers"),
        **_hardware(device),
        "copy_bytes_s": _copy_rate(device),
        "matmul_flop_s": _matmul_rate(device),
    }


def _hardware(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    return {
        "cuda": torch.version.cuda,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cache_bytes": properties.L2_cache_size,
    }


def _copy_rate(device: torch.device) -> float:
    source = torch.empty(COPIED_BYTES[device.type], dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / eager_s(lambda: target.copy_(source), device)


def _matmul_rate(device: torch.device) -> float:
    size = MATRIX_SIZE[device.type]
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * size**3 / eager_s(lambda: a @ b, device)


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
