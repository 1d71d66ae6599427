"""Stages of the run, each in its own process; each figure is reported at once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import correctness
import decode_bandwidth
import engine_figures
import machine_rates
import quantized_products
import torch
import transformers_peer
from rooflines import ModelCost, Rates

PEER_SHAPE = "qwen3-0.6b"
BACKENDS = ("triton", "cuda", "torch_sdpa")
DRY_OPTIONS = {"device": "cpu", "kernels": "triton", "attention_backend": "triton"}
OPTIONS = {"device": "cuda", "dtype": "bfloat16"}


def run_stage(name: str, machine: dict[str, Any], is_dry: bool) -> Iterator[dict[str, Any]]:
    """Yield the results of a stage, piece by piece.

    Args:
        name: Name in `run.stages`.
        machine: Results of the stage `machine`.
        is_dry: True for tiny sizes, on the CPU.
    """
    device = torch.device("cpu" if is_dry else "cuda")
    kind, _, what = name.partition(":")
    rates = None
    if "matmul_flop_s" in machine:
        rates = Rates(machine["copy_bytes_s"], machine["matmul_flop_s"])
    with tempfile.TemporaryDirectory() as folder:
        if kind == "machine":
            yield machine_rates.measure_rates(device)
        elif kind == "correctness":
            yield from _correctness(Path(folder), device, is_dry)
        elif kind == "bandwidth":
            yield from _bandwidth(device, rates, is_dry)
        elif kind == "products":
            yield from _products(device, rates, is_dry)
        elif kind == "peer":
            yield _peer(Path(folder), what, device, is_dry)
        else:
            yield from _engine(Path(folder), what, rates, is_dry)


def _correctness(folder: Path, device: torch.device, is_dry: bool) -> Iterator[dict[str, Any]]:
    dtypes = ("float32",) if is_dry else ("bfloat16", "float32")
    for name in _able(device):
        for dtype in dtypes:
            yield {"backends": [correctness.check_backend(name, device, dtype)]}
    for dtype in dtypes:
        options = DRY_OPTIONS if is_dry else {"device": "cuda"}
        yield {"engines": [correctness.check_engine(folder, "5m", dtype, options, is_dry)]}


def _bandwidth(device: torch.device, rates: Rates | None, is_dry: bool) -> Iterator[dict[str, Any]]:
    sizes = decode_bandwidth.DRY if is_dry else decode_bandwidth.Sizes()
    names = [name for name in _able(device) if name != "torch_sdpa"]
    copy_bytes_s = None if rates is None else rates.copy_bytes_s
    for row in decode_bandwidth.measure_bandwidth(names, device, copy_bytes_s, sizes):
        yield {"rows": [row]}


def _products(device: torch.device, rates: Rates | None, is_dry: bool) -> Iterator[dict[str, Any]]:
    sizes = quantized_products.DRY if is_dry else quantized_products.FULL
    copy_bytes_s = None if rates is None else rates.copy_bytes_s
    for row in quantized_products.measure_products(device, copy_bytes_s, sizes):
        yield {"rows": [row]}


def _engine(
    folder: Path, shape: str, rates: Rates | None, is_dry: bool
) -> Iterator[dict[str, Any]]:
    load = engine_figures.DRY if is_dry else engine_figures.Load()
    found = engine_figures.measure_engine(folder, shape, DRY_OPTIONS if is_dry else OPTIONS, load)
    yield next(found)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if rates is not None:
        yield {"limits": _limits(ModelCost.of(config), rates, load)}
    yield from found


def _limits(cost: ModelCost, rates: Rates, load: engine_figures.Load) -> dict[str, float]:
    lengths = load.mixed_lengths()
    num_out = sum(length for _, length in lengths)
    return {
        "single_tok_s": 1 / cost.decode_s(rates, [16 + load.single_len // 2]),
        "batch_tok_s": load.batch / cost.decode_s(rates, [load.context] * load.batch),
        "prefill_tok_s": load.prefill_len / cost.prefill_s(rates, load.prefill_len),
        "mixed_tok_s": num_out / cost.mixed_s(rates, lengths, load.mixed),
    }


def _peer(folder: Path, who: str, device: torch.device, is_dry: bool) -> dict[str, Any]:
    shape = "5m" if is_dry else PEER_SHAPE
    load = transformers_peer.DRY_PEER if is_dry else transformers_peer.PeerLoad()
    if who == "quire":
        options = DRY_OPTIONS if is_dry else OPTIONS
        return transformers_peer.measure_quire(folder, shape, options, load)
    dtype = torch.float32 if is_dry else torch.bfloat16
    return transformers_peer.measure_transformers(folder, shape, device, dtype, load)


def _able(device: torch.device) -> list[str]:
    """Return the backends that serve this device."""
    from quire.config import PluginSettings
    from quire.plugins.loading import load_plugins

    registry = load_plugins(PluginSettings()).registries.attention_backends
    return [
        name
        for name in BACKENDS
        if name in registry and device.type in registry.entry(name).capabilities.devices
    ]
