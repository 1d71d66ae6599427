"""What one stage of the run does, in its own process."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import correctness
import decode_bandwidth
import engine_figures
import machine_rates
import torch
import transformers_peer
from rooflines import ModelCost, Rates

PEER_SHAPE = "qwen3-0.6b"
BACKENDS = ("triton", "cuda", "torch_sdpa")
DRY_OPTIONS = {"device": "cpu", "kernels": "triton", "attention_backend": "triton"}
OPTIONS = {"device": "cuda", "dtype": "bfloat16"}


def run_stage(name: str, machine: dict[str, Any], is_dry: bool) -> dict[str, Any]:
    """Return what a stage found.

    Args:
        name: As `run.stages` names it.
        machine: What the stage `machine` found.
        is_dry: Take tiny sizes, on the CPU.
    """
    device = torch.device("cpu" if is_dry else "cuda")
    kind, _, shape = name.partition(":")
    if kind == "machine":
        return machine_rates.measure_rates(device)
    if kind == "correctness":
        return _correctness(device, is_dry)
    rates = Rates(machine["copy_bytes_s"], machine["matmul_flop_s"])
    if kind == "bandwidth":
        return _bandwidth(device, rates, is_dry)
    if kind == "peer":
        return _peer(device, is_dry)
    return _engine(shape, rates, is_dry)


def _correctness(device: torch.device, is_dry: bool) -> dict[str, Any]:
    dtypes = ("float32",) if is_dry else ("bfloat16", "float32")
    names = _able(device)
    options = DRY_OPTIONS if is_dry else {"device": "cuda", "dtype": "float32"}
    with tempfile.TemporaryDirectory() as folder:
        engine = correctness.check_engine(Path(folder), "5m", options)
    backends = [
        correctness.check_backend(name, device, dtype) for name in names for dtype in dtypes
    ]
    return {"backends": backends, **engine}


def _bandwidth(device: torch.device, rates: Rates, is_dry: bool) -> dict[str, Any]:
    sizes = decode_bandwidth.DRY if is_dry else decode_bandwidth.Sizes()
    names = [name for name in _able(device) if name != "torch_sdpa"]
    rows = decode_bandwidth.measure_bandwidth(names, device, rates.copy_bytes_s, sizes)
    return {"rows": list(rows)}


def _engine(shape: str, rates: Rates, is_dry: bool) -> dict[str, Any]:
    load = engine_figures.DRY if is_dry else engine_figures.Load()
    options = DRY_OPTIONS if is_dry else OPTIONS
    with tempfile.TemporaryDirectory() as folder:
        found = engine_figures.measure_engine(Path(folder), shape, options, load)
        config = _config(Path(folder))
    cost = ModelCost.of(config)
    lengths = load.mixed_lengths()
    num_out = sum(length for _, length in lengths)
    limits = {
        "single_tok_s": 1 / cost.decode_s(rates, [16 + load.single_len // 2]),
        "batch_tok_s": load.batch / cost.decode_s(rates, [load.context] * load.batch),
        "prefill_tok_s": load.prefill_len / cost.prefill_s(rates, load.prefill_len),
        "mixed_tok_s": num_out / cost.mixed_s(rates, lengths, load.mixed),
    }
    return {**found, "limits": limits}


def _config(folder: Path) -> dict[str, Any]:
    import json

    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def _peer(device: torch.device, is_dry: bool) -> dict[str, Any]:
    shape = "5m" if is_dry else PEER_SHAPE
    load = transformers_peer.DRY_PEER if is_dry else transformers_peer.PeerLoad()
    dtype = torch.float32 if is_dry else torch.bfloat16
    with tempfile.TemporaryDirectory() as folder:
        return {
            "shape": shape,
            **transformers_peer.measure_peer(Path(folder), shape, device, dtype, load),
        }


def _able(device: torch.device) -> list[str]:
    """Return the backends that serve this device."""
    from quire.config import PluginSettings
    from quire.plugins import load_plugins

    registry = load_plugins(PluginSettings()).registries.attention_backends
    return [
        name
        for name in BACKENDS
        if name in registry and device.type in registry.entry(name).capabilities.devices
    ]
