"""ctypes declarations of the compiled functions of the backend `cpu` and of their structures.

The fields are those of `attention_work.h`, in the same order.
"""

from __future__ import annotations

from ctypes import POINTER, Structure, c_float, c_int64, c_void_p
from pathlib import Path

from quire.machine.instruction_sets import bf16_unavailable_reason, cpu_flags, here
from quire.native.library import NativeLibrary

PAIRS = "bfloat16 pairs"
KINDS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "int8", PAIRS)  # as the C++ enum


class Heads(Structure):
    """Parameters that all layers of a backend share."""

    _fields_ = (
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("block_size", c_int64),
        ("kind", c_int64),
        ("threads", c_int64),
        ("scratch", c_void_p),
    )


class LayerArguments(Structure):
    """Parameters of one layer: its pages, attention bounds and scales."""

    _fields_ = (
        ("pages", c_void_p),
        ("page_bytes", c_int64),
        ("window", c_int64),
        ("chunk", c_int64),
        ("sinks", c_void_p),
        ("slopes", c_void_p),
        ("scale", c_float),
        ("cap", c_float),
        ("k_scale", c_float),
        ("v_scale", c_float),
    )


class Step(Structure):
    """Description of one step: its requests, their blocks and the slots of its tokens."""

    _fields_ = (
        ("query_start", c_void_p),
        ("seq_lens", c_void_p),
        ("block_table", c_void_p),
        ("table_stride", c_int64),
        ("slots", c_void_p),
        ("num_requests", c_int64),
        ("costs", c_void_p),
    )


_SHARED = (c_void_p, c_void_p, c_void_p)  # Heads, Layer, Step

SOURCE = Path(__file__).with_name("cpu_attention.cpp")
FUNCTIONS = {
    "attention_scratch": (POINTER(Heads), POINTER(c_int64)),
    "attend": (
        *_SHARED,
        *(c_void_p, c_int64) * 3,  # q, k and v, each with its token stride
        c_void_p,  # output
    ),
    "turn_and_attend": (
        *_SHARED,
        c_void_p,  # qkv
        *(c_void_p, c_void_p),  # rotary table, positions
        *(c_void_p, c_float),  # weight and epsilon of the norm
        c_void_p,  # output
    ),
}
LIBRARY = NativeLibrary("attention", SOURCE, FUNCTIONS, repeats=True)


def multiplies_pairs() -> bool:
    """Return whether this processor and its kernels multiply pairs of bfloat16."""
    return bf16_unavailable_reason(here(), cpu_flags()) is None
