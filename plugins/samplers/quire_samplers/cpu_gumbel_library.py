"""Python bindings of the compiled sampler."""

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

from quire.native.library import NativeLibrary

_ROWS = (c_void_p, c_long, c_long, c_long)

LIBRARY = NativeLibrary(
    "CPU sampler",
    Path(__file__).with_name("cpu_gumbel.cpp"),
    {
        "likeliest_tokens": (*_ROWS, c_void_p, c_int),
        "sample_tokens": (*_ROWS, *(c_void_p,) * 5, c_int),
    },
)
