"""Python bindings of the compiled products of packed weights."""

import ctypes
from pathlib import Path

from quire.machine.instruction_sets import (
    InstructionSet,
    bf16_unavailable_reason,
    cpu_flags,
    here,
)
from quire.native.library import NativeLibrary
from quire_quantizations.formats import Format

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64

BYTE_FLAGS = {  # of instructions that add four products of bytes, by instruction set
    "avx512": "avx512_vnni",
    "avx2": "avx_vnni",
    "neon": "asimddp",
}
FLOAT_PRODUCTS, NARROW_PRODUCTS, FUSED_PRODUCTS = 0, 1, 2  # as in linear.cpp
SOURCE = Path(__file__).with_name("linear.cpp")
FUNCTIONS = {
    # weight, x, bias, out, rows
    "linear": (_POINTER, _POINTER, _POINTER, _POINTER, _INT64),
    # experts, x, ends, out
    "grouped_linear": (_POINTER, _POINTER, _POINTER, _POINTER),
    # weight, bytes
    "packed_bytes": (_POINTER, _POINTER),
    # weight, dense, is_bf16, packed
    "pack": (_POINTER, _POINTER, _INT64, _POINTER),
    # weight, ids, count, out, wrong_id
    "rows": (_POINTER, _POINTER, _INT64, _POINTER, _POINTER),
}
LIBRARY = NativeLibrary("packed linear layers", SOURCE, FUNCTIONS, repeats=True)
CODE_FUNCTIONS = {
    **{name: FUNCTIONS[name] for name in ("linear", "grouped_linear", "packed_bytes")},
    # weight, codes, packed
    "pack_codes": (_POINTER, _POINTER, _POINTER),
}
CODE_LIBRARY = NativeLibrary(
    "linear layers of quantized checkpoints",
    SOURCE,
    CODE_FUNCTIONS,
    repeats=True,
    macros=("QUIRE_CODES",),
)


def dot_unavailable_reason() -> str | None:
    """Return why products of pairs cannot run on this processor: the probe of bf16_dot."""
    reason = bf16_unavailable_reason(here(), cpu_flags())
    if reason is None:
        return LIBRARY.unavailable_reason()
    return f"{reason}; bf16 stores the same weights and runs on any processor"


def codes_unavailable_reason() -> str | None:
    """Return why weights of quantized checkpoints cannot be kept: the probe of codes."""
    return CODE_LIBRARY.unavailable_reason() or LIBRARY.unavailable_reason()


def library_of(weight_format: Format) -> NativeLibrary:
    """Return the library that multiplies by weights of a format."""
    return CODE_LIBRARY if weight_format.group_size else LIBRARY


def kind_of_products(weight_format: Format) -> int:
    """Return how linear.cpp multiplies on this processor."""
    if not weight_format.rounds_inputs:
        return FLOAT_PRODUCTS
    chosen = here()
    has_fused = isinstance(chosen, InstructionSet) and BYTE_FLAGS.get(chosen.name) in cpu_flags()
    return FUSED_PRODUCTS if has_fused else NARROW_PRODUCTS


class ExpertsStruct(ctypes.Structure):
    """Mirror of the struct `ExpertWeights` of linear.cpp."""

    _fields_ = (
        ("format", _INT64),
        ("products", _INT64),
        ("inputs", _INT64),
        ("outputs", _INT64),
        ("experts", _INT64),
        ("packed", _POINTER),
        ("biases", _POINTER),
        ("threads", _INT64),
        ("orders", _POINTER),
    )


class CodesStruct(ctypes.Structure):
    """Mirror of the struct `CodedWeight` of code_formats.h."""

    _fields_ = (
        ("codes", _POINTER),
        ("scales", _POINTER),
        ("offsets", _POINTER),
        ("groups", _INT64),
    )


class WeightStruct(ctypes.Structure):
    """Mirror of the struct `Weight` of linear.cpp."""

    _fields_ = (
        ("format", _INT64),
        ("products", _INT64),
        ("packed", _POINTER),
        ("inputs", _INT64),
        ("outputs", _INT64),
        ("threads", _INT64),
        ("order", _POINTER),
    )
