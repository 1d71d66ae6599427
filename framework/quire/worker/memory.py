"""How much memory the KV cache may take."""

from pathlib import Path

import torch

MEMORY_INFO = Path("/proc/meminfo")
CPU_SHARE = 0.4  # of what is free once the weights are loaded: other programs live here too
CUDA_SHARE = 0.9
UNKNOWN_BYTES = 2 * 2**30


def available_bytes(device: torch.device) -> int:
    """Return the bytes that the cache may take on a device, now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * CUDA_SHARE)
    return int(_free_host_bytes() * CPU_SHARE)


def _free_host_bytes() -> int:
    if not MEMORY_INFO.is_file():
        return UNKNOWN_BYTES
    lines = dict(line.split(":", 1) for line in MEMORY_INFO.read_text().splitlines() if ":" in line)
    return int(lines["MemAvailable"].split()[0]) * 1024
