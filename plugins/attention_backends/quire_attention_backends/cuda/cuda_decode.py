"""Python interface to the kernels of `paged_decode.cu`: variants, argument structure, launches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from importlib import resources
from typing import ClassVar, Protocol

import torch

from quire.interfaces.attention import AttentionShape
from quire_attention_backends.cuda.cuda_compiler import compile_cubin
from quire_attention_backends.cuda.cuda_driver import CudaDriver
from quire_attention_backends.shared.launch_sizes import next_power_of_two

SOURCE = "paged_decode.cu"
KERNELS = ("paged_decode", "combine")
BLOCK_THREADS = 128
MAX_HEAD_WARPS = 4

_QUERY_CODES = {torch.float32: 32, torch.float16: 16, torch.bfloat16: 116}
_STORED_CODES = {"float32": 32, "float16": 16, "bfloat16": 116, "float8_e4m3fn": 8}


class DecodeStep(ctypes.Structure):
    """Argument of both kernels; its fields are described at `DecodeStep` in the source."""

    _fields_: ClassVar = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                "out", "q", "pages", "block_table", "query_start", "seq_lens", "num_partitions",
                "partitions", "parts", "partial_out", "partial_stats", "sinks",
            )
        ),
        *(
            (name, ctypes.c_longlong)
            for name in ("q_token_stride", "q_head_stride", "page_stride", "table_stride")
        ),
        *(
            (name, ctypes.c_int)
            for name in (
                "num_requests", "num_tokens", "num_kv_heads", "group", "page_shift",
                "combined_heads", "window", "chunk",
            )
        ),
        *((name, ctypes.c_float) for name in ("q_factor", "soft_cap", "v_factor")),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecodeVariant:
    """Compile-time parameters of the kernels.

    Attributes:
        query: Code of the element type of q and of the output.
        stored: Code of the element type of K and V.
        head_dim: D.
        tile_heads: Number of query heads per warp.
        head_warps: Number of groups of heads in a block; warps of the same group divide the keys.
    """

    query: int
    stored: int
    head_dim: int
    tile_heads: int
    head_warps: int

    @classmethod
    def of(cls, shape: AttentionShape) -> DecodeVariant:
        """Choose the variant for a shape."""
        group = shape.num_heads // shape.num_kv_heads
        tile_heads = min(4, next_power_of_two(group))
        head_warps = min(MAX_HEAD_WARPS, next_power_of_two(-(-group // tile_heads)))
        stored = _STORED_CODES[shape.kv_dtype]
        return cls(_QUERY_CODES[shape.dtype], stored, shape.head_dim, tile_heads, head_warps)

    @property
    def block_heads(self) -> int:
        """Number of query heads of one KV head in a block."""
        return self.tile_heads * self.head_warps

    @property
    def macros(self) -> dict[str, int]:
        """Macros that the source requires."""
        return {
            "QUERY": self.query,
            "STORED": self.stored,
            "HEAD_DIM": self.head_dim,
            "TILE_HEADS": self.tile_heads,
            "HEAD_WARPS": self.head_warps,
        }


class DecodeKernels(Protocol):
    """The kernels of one variant, ready to be launched."""

    def launch(self, name: str, grid: tuple[int, int], step: DecodeStep) -> None:
        """Launch a kernel after the previous launches."""


class DeviceKernels:
    """The kernels on a GPU, compiled for it on first use; launched on torch's current stream.

    Raises:
        PluginLoadError: The kernels could not be compiled or loaded.
    """

    def __init__(self, variant: DecodeVariant, device: torch.device) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        cubin = compile_cubin(read_source(), variant.macros, 10 * major + minor)
        self._device = device
        with torch.cuda.device(device):
            torch.cuda.current_stream().synchronize()  # makes torch create its context
            functions = CudaDriver().load(cubin, KERNELS)
        self._functions = dict(zip(KERNELS, functions, strict=True))

    def launch(self, name: str, grid: tuple[int, int], step: DecodeStep) -> None:
        """Launch a kernel on torch's current stream."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        self._functions[name].launch(grid, BLOCK_THREADS, stream, step)


def read_source() -> str:
    """Return the CUDA C++ source of all variants."""
    return resources.files(__package__).joinpath(SOURCE).read_text(encoding="utf-8")
