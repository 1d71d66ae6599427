"""Python bindings of the compiled products of packed weights."""

import ctypes
from pathlib import Path

from quire.native.library import NativeLibrary

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64

SOURCE = Path(__file__).with_name("linear.cpp")
FUNCTIONS = {
    # weight, x, bias, out, rows
    "linear": (_POINTER, _POINTER, _POINTER, _POINTER, _INT64),
    # weight, bytes
    "packed_bytes": (_POINTER, _POINTER),
    # weight, dense, is_bf16, packed
    "pack": (_POINTER, _POINTER, _INT64, _POINTER),
    # weight, ids, count, out, wrong_id
    "rows": (_POINTER, _POINTER, _INT64, _POINTER, _POINTER),
}
LIBRARY = NativeLibrary("packed linear layers", SOURCE, FUNCTIONS, repeats=True)


class WeightStruct(ctypes.Structure):
    """Mirror of the struct `Weight` of linear.cpp."""

    _fields_ = (
        ("format", _INT64),
        ("packed", _POINTER),
        ("inputs", _INT64),
        ("outputs", _INT64),
        ("threads", _INT64),
    )
