"""Native libraries of layers and of LoRA adapters, without the tensors they compute with."""

from ctypes import c_float, c_int, c_long, c_void_p
from pathlib import Path

from quire.native.library import NativeLibrary

_GATE = (c_void_p, c_void_p, c_long, c_long, c_int)

LAYERS = NativeLibrary(
    "layers",
    Path(__file__).with_name("cpu_layers.cpp"),
    {
        "rms_norm": (c_void_p, c_void_p, c_void_p, c_long),
        "add_rms_norm": (c_void_p, c_void_p, c_void_p, c_long),
        "head_rms_norm": (c_void_p, c_long, c_void_p, c_void_p, *(c_long,) * 3, c_float, c_int),
        "silu_and_mul": _GATE,
        "gelu_tanh_and_mul": _GATE,
        "mask_logits": (c_void_p, c_long, c_long, c_void_p, c_long, c_void_p, c_long, c_int),
    },
    repeats=True,
)
ADAPTERS = NativeLibrary(
    "adapters",
    Path(__file__).with_name("cpu_lora.cpp"),
    {"add_lora": (c_void_p, c_void_p, c_void_p, c_long, c_void_p, c_void_p, c_int)},
)
