"""Python bindings of the compiled sampler."""

from ctypes import c_int, c_long, c_void_p
from pathlib import Path

from quire.native.library import NativeLibrary

_ROWS = (c_void_p, *(c_long,) * 4)
_RESULTS = (c_void_p, c_void_p)

LIBRARY = NativeLibrary(
    "CPU sampler",
    Path(__file__).with_name("cpu_gumbel.cpp"),
    {
        "likeliest_tokens": (*_ROWS, *_RESULTS, c_int),
        "sample_tokens": (*_ROWS, *(c_void_p,) * 4, *_RESULTS, c_int),
    },
    repeats=True,
)
