"""Products with weights of quantized checkpoints: bandwidth, and time beside that of bfloat16.

The layers are those of Llama-3.1-8B that have the most weights. Several run one after the other, so
that caches do not hold their weights. The bytes that count are those that a layer holds: codes,
scales and zero points, read once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from timing import device_s
from torch import nn
from torch.nn import functional

from quire.config import PluginSettings
from quire.interfaces.quantization import LayerSettings, LinearMethod
from quire.interfaces.quantized_weight import QuantizedWeight
from quire.plugins.loading import load_plugins
from quire_quantizations.number_tables import e2m1_table, float8_table

KeptLayer = tuple[LinearMethod, nn.Module]

METHOD = "triton_codes"
SHAPES = {"gate_up_proj": (28_672, 4096), "down_proj": (4096, 14_336)}
ROWS = (1, 8, 16, 64, 512, 4096)
MIN_READ_BYTES = 2**29  # by one replay: several times a device's last cache
NUM_FINITE = 126  # codes of float8 from 0 on


@dataclass(frozen=True, slots=True)
class Format:
    """A format that checkpoints have.

    Attributes:
        table: Value of each code.
        group_size: Inputs that share a scale; 0: all inputs of an output.
        has_zeros: Whether groups have zero points.
    """

    table: Sequence[float]
    group_size: int
    has_zeros: bool = False


FORMATS = {
    "int4, groups of 128": Format(range(-8, 8), 128),
    "int4, groups of 128, zero points": Format(range(16), 128, has_zeros=True),
    "int4, groups of 32": Format(range(-8, 8), 32),
    "mxfp4": Format(e2m1_table().tolist(), 32),
    "fp8, blocks of 128": Format(float8_table().tolist(), 128),
    "int8, one scale an output": Format(range(-128, 128), 0),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that are measured; small ones for a dry run."""

    shapes: Mapping[str, tuple[int, int]]
    rows: Sequence[int] = ROWS
    min_read_bytes: int = MIN_READ_BYTES
    dtype: torch.dtype = torch.bfloat16


FULL = Sizes(SHAPES)
DRY = Sizes({"gate_up_proj": (16, 128)}, (2,), 1, torch.float32)


def measure_products(
    device: torch.device, copy_bytes_s: float | None, sizes: Sizes
) -> Iterator[dict[str, Any]]:
    """Measure each format with each number of rows; a row of a failure has the reason."""
    for layer, shape in sizes.shapes.items():
        dense_s = {rows: _dense_s(shape, rows, device, sizes) for rows in sizes.rows}
        for name, each in FORMATS.items():
            row: dict[str, Any] = {"layer": layer, "format": name}
            try:
                layers = _layers(each, shape, device, sizes)
                for rows in sizes.rows:
                    seconds = _kept_s(layers, shape[1], rows, device, sizes)
                    rate = _bytes_of(layers[0]) / seconds
                    yield row | {
                        "rows": rows,
                        "us": seconds * 1e6,
                        "bytes_s": rate,
                        "of_copy": None if copy_bytes_s is None else rate / copy_bytes_s,
                        "times_bfloat16": dense_s[rows] / seconds,
                    }
            except Exception as error:  # noqa: BLE001 (the others are still worth measuring)
                yield row | {"error": f"{type(error).__name__}: {error}"[:300]}


def random_weight(each: Format, shape: tuple[int, int], device: torch.device) -> QuantizedWeight:
    """Return a weight of a format, without codes that are no numbers."""
    outputs, inputs = shape
    table = torch.as_tensor(each.table, dtype=torch.float32).to(device)
    group_size = each.group_size or inputs
    num_codes = min(len(table), NUM_FINITE)
    codes = torch.randint(num_codes, shape, dtype=torch.uint8, device=device)
    groups = (outputs, -(-inputs // group_size))
    scales = torch.rand(groups, device=device).half().float() / inputs**0.5
    zeros = torch.randint(16, groups, device=device)
    offsets = -zeros * scales if each.has_zeros else None
    return QuantizedWeight(codes, scales, table, group_size, offsets)


def _layers(
    each: Format, shape: tuple[int, int], device: torch.device, sizes: Sizes
) -> list[KeptLayer]:
    """Return so many layers that caches do not hold what they read."""
    registry = load_plugins(PluginSettings()).registries.quantizations
    settings = LayerSettings(sizes.dtype, device)
    quantization = registry.get(METHOD).from_config({}).for_layers(settings)
    layers: list[KeptLayer] = []
    while not layers or _bytes_of(layers[0]) * len(layers) < sizes.min_read_bytes:
        method, layer = quantization.linear_method(METHOD), nn.Module()
        if method is None:
            raise RuntimeError(f"{METHOD} stores no weight")
        method.create_weights(layer, *shape)
        method.load_quantized(layer, random_weight(each, shape, device), 0)
        method.finish_loading(layer)
        layers.append((method, layer))
    return layers


def _kept_s(
    layers: Sequence[KeptLayer], inputs: int, rows: int, device: torch.device, sizes: Sizes
) -> float:
    """Return the seconds of a layer's product."""
    x = torch.randn(rows, inputs, dtype=sizes.dtype, device=device)

    def run() -> None:
        for method, layer in layers:
            method.apply(layer, x)

    return device_s(run, device) / len(layers)


def _dense_s(shape: tuple[int, int], rows: int, device: torch.device, sizes: Sizes) -> float:
    """Return the seconds of the matrix library's product with an ordinary weight."""
    weight = torch.randn(shape, dtype=sizes.dtype, device=device)
    x = torch.randn(rows, shape[1], dtype=sizes.dtype, device=device)
    return device_s(lambda: functional.linear(x, weight), device)


def _bytes_of(layer: KeptLayer) -> int:
    return sum(buffer.nbytes for buffer in layer[1].buffers())
