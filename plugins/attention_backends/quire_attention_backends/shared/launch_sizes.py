"""Sizes of kernel launches: powers of two, and the number of programs that keep a device busy."""

from __future__ import annotations

import torch

CPU_PROGRAMS = 16  # for the interpreter: enough to split, few enough to be quick


def next_power_of_two(number: int) -> int:
    """Return the smallest power of two that is not less; Triton's own function is slow."""
    return 1 << (number - 1).bit_length()


def num_programs(device: torch.device, programs_per_sm: int) -> int:
    """Return the number of programs that keep a device busy.

    Args:
        device: Device of the launch.
        programs_per_sm: Number of programs for each multiprocessor of a GPU.
    """
    if device.type != "cuda":
        return CPU_PROGRAMS
    return programs_per_sm * torch.cuda.get_device_properties(device).multi_processor_count
