"""Python bindings of the compiled products of packed weights."""

import ctypes
import logging
import os
from pathlib import Path

from quire.machine.instruction_sets import (
    InstructionSet,
    bf16_unavailable_reason,
    cpu_flags,
    here,
)
from quire.native.library import NativeLibrary
from quire.native.logged_reasons import LoggedReasons
from quire_quantizations.formats import Format

logger = logging.getLogger(__name__)

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64
_LOGGED = LoggedReasons()

MATRIX_SET = "amx"  # whose products are of matrices
MATRIX_REASONS = {  # by the status of request_matrices; others are error numbers
    -1: "the compiler is too old",
    -2: "its products differ from those of AVX-512; please report this processor",
}
BYTE_FLAGS = {  # of instructions that add four products of bytes, by instruction set
    "amx": "avx512_vnni",
    "avx512": "avx512_vnni",
    "avx2": "avx_vnni",
    "neon": "asimddp",
}
FLOAT_PRODUCTS, NARROW_PRODUCTS, FUSED_PRODUCTS, MATRIX_PRODUCTS = range(4)  # as in linear.cpp
SOURCE = Path(__file__).with_name("linear.cpp")
FUNCTIONS = {
    # weight, x, bias, out, rows
    "linear": (_POINTER, _POINTER, _POINTER, _POINTER, _INT64),
    # experts, x, ends, out
    "grouped_linear": (_POINTER, _POINTER, _POINTER, _POINTER),
    # weight, bytes
    "packed_bytes": (_POINTER, _POINTER),
    # weight, slices, number type, packed
    "pack": (_POINTER, _POINTER, _INT64, _POINTER),
    # weight, ids, count, out, wrong_id
    "rows": (_POINTER, _POINTER, _INT64, _POINTER, _POINTER),
    # status
    "request_matrices": (_POINTER,),
}
LIBRARY = NativeLibrary("packed linear layers", SOURCE, FUNCTIONS, repeats=True)
CODE_FUNCTIONS = {
    **{name: FUNCTIONS[name] for name in ("linear", "grouped_linear", "packed_bytes", "rows")},
    # weight, codes, packed
    "pack_codes": (_POINTER, _POINTER, _POINTER),
}


def _code_library(products: str, *macros: str) -> NativeLibrary:
    name = f"linear layers of quantized checkpoints ({products})"
    return NativeLibrary(
        name, SOURCE, CODE_FUNCTIONS, repeats=True, macros=("QUIRE_CODES", *macros)
    )


CODE_LIBRARY = _code_library("float32")
PAIRS_LIBRARY = _code_library("bfloat16", "QUIRE_CODES_AS_PAIRS")
INTEGERS_LIBRARY = _code_library("integers", "QUIRE_CODES_AS_INTEGERS")
FUSED_LIBRARY = _code_library("fused integers", "QUIRE_CODES_AS_FUSED_INTEGERS")


def dot_unavailable_reason() -> str | None:
    """Return why products of pairs cannot run on this processor: the probe of bf16_dot."""
    reason = bf16_unavailable_reason(here(), cpu_flags())
    if reason is None:
        return LIBRARY.unavailable_reason()
    return f"{reason}; bf16 stores the same weights and runs on any processor"


def codes_unavailable_reason() -> str | None:
    """Return why weights of quantized checkpoints cannot be kept: the probe of codes."""
    libraries = [LIBRARY, CODE_LIBRARY, _library_of_integers()]
    if bf16_unavailable_reason(here(), cpu_flags()) is None:
        libraries.append(PAIRS_LIBRARY)
    for library in libraries:
        library.prepare()
    reasons = (library.unavailable_reason() for library in libraries)
    return next((reason for reason in reasons if reason is not None), None)


def library_of(weight_format: Format) -> NativeLibrary:
    """Return the library that multiplies by weights of a format."""
    if not weight_format.group_size:
        return LIBRARY
    if weight_format.inputs == "int8":
        return _library_of_integers()
    return PAIRS_LIBRARY if weight_format.inputs == "bfloat16" else CODE_LIBRARY


def kind_of_products(weight_format: Format) -> int:
    """Return how linear.cpp multiplies on this processor."""
    if weight_format.inputs == "float32":
        return FLOAT_PRODUCTS
    is_matrix_set = _set_name() == MATRIX_SET
    if is_matrix_set and not weight_format.group_size and _may_use_matrices():
        return MATRIX_PRODUCTS
    return FUSED_PRODUCTS if _has_fused_bytes() else NARROW_PRODUCTS


def _library_of_integers() -> NativeLibrary:
    return FUSED_LIBRARY if _has_fused_bytes() else INTEGERS_LIBRARY


def _has_fused_bytes() -> bool:
    return BYTE_FLAGS.get(_set_name()) in cpu_flags()


def _set_name() -> str:
    chosen = here()
    return chosen.name if isinstance(chosen, InstructionSet) else ""


def _may_use_matrices() -> bool:
    """Ask the system for AMX's registers, and check products; log the reason against them."""
    status = ctypes.c_int64()
    LIBRARY.load().request_matrices(ctypes.addressof(status))
    if not status.value:
        return True
    reason = MATRIX_REASONS.get(status.value) or os.strerror(status.value)
    if _LOGGED.is_new(reason):
        logger.warning("products of linear layers use AVX-512 instead of AMX: %s", reason)
    return False


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


class DenseSliceStruct(ctypes.Structure):
    """Mirror of the struct `DenseSlice` of linear_packing.h."""

    _fields_ = (("values", _POINTER), ("outputs", _INT64), ("stride", _INT64))


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
