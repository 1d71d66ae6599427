"""Native libraries of layers, experts and LoRA adapters, without the tensors they compute with."""

from ctypes import c_float, c_int, c_int64, c_long, c_void_p
from pathlib import Path

from quire.native.library import NativeLibrary

_ROW_NORM = (c_void_p, c_void_p, c_void_p, c_long)

LAYERS = NativeLibrary(
    "layers",
    Path(__file__).with_name("cpu_layers.cpp"),
    {
        "rms_norm": _ROW_NORM,
        "add_rms_norm": _ROW_NORM,
        "layer_norm": _ROW_NORM,
        "add_layer_norm": _ROW_NORM,
        "norm_groups": (c_void_p, c_void_p, c_long, c_void_p, c_long, c_long),
        "square_groups": (c_void_p, c_void_p, c_long, c_void_p, c_long),
        "scale_groups": (c_void_p, c_void_p, c_void_p, c_long, c_long),
        "activate": (c_void_p, c_void_p, c_void_p, c_long),
        "activate_gate": (c_void_p, c_void_p, c_void_p, c_long, c_long),
        "mask_logits": (c_void_p, c_long, c_long, c_void_p, c_long, c_void_p, c_long, c_int),
        "gather_decode": (c_void_p, c_int64),
        "append_tokens": (c_void_p, c_void_p, c_int64),
        "pack_tokens": (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p),
    },
    repeats=True,
)
ADAPTERS = NativeLibrary(
    "adapters",
    Path(__file__).with_name("cpu_lora.cpp"),
    {"add_lora": (c_void_p, c_void_p, c_void_p, c_long, c_void_p, c_void_p, c_int)},
    repeats=True,
)
EXPERTS = NativeLibrary(
    "experts",
    Path(__file__).with_name("cpu_moe.cpp"),
    {
        "route": (*(c_void_p,) * 6, c_long),
        "group_rows": (c_void_p, c_long, c_int64, c_long, c_void_p, c_void_p, c_void_p),
        "gather_rows": (
            c_void_p, c_void_p, c_void_p, c_long, c_void_p, c_long, c_long, c_void_p, c_int,
        ),
        "combine_rows": (c_void_p, c_void_p, c_void_p, *(c_long,) * 3, c_void_p, c_int),
        "clamped_swiglu": (c_void_p, c_void_p, c_long, c_long, c_float, c_float, c_int),
    },
    repeats=True,
)  # fmt: skip
