"""The compiled products of packed weights, as Python sees them."""

import ctypes
from pathlib import Path

from quire.native.library import NativeLibrary

_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64

SOURCE = Path(__file__).with_name("linear.cpp")
FUNCTIONS = {
    # weight, x, bias, out, rows
    "linear": (_POINTER, _POINTER, _POINTER, _POINTER, _NUMBER),
    # weight, bytes
    "packed_bytes": (_POINTER, _POINTER),
    # weight, dense, is_bf16, packed
    "pack": (_POINTER, _POINTER, _NUMBER, _POINTER),
    # weight, ids, count, out, wrong_id
    "rows": (_POINTER, _POINTER, _NUMBER, _POINTER, _POINTER),
}
LIBRARY = NativeLibrary("packed linear layers", SOURCE, FUNCTIONS, repeats=True)


class WeightStruct(ctypes.Structure):
    """`Weight` of linear.cpp."""

    _fields_ = (
        ("format", _NUMBER),
        ("packed", _POINTER),
        ("inputs", _NUMBER),
        ("outputs", _NUMBER),
        ("threads", _NUMBER),
    )
