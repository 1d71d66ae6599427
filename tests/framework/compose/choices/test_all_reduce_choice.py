"""Symmetric memory is chosen for GPUs that share a layer, with the reason if it is not."""

from dataclasses import replace

import pytest
from grid_parts import MACHINE, composed_grid

from quire.compose.choices.all_reduce_choice import choose_symmetric_memory
from quire.config import Settings

GPU = replace(MACHINE, has_cuda=True, compute_capability=90)
TP2 = {"tensor_parallel_size": 2}


@pytest.mark.parametrize(
    ("options", "device", "machine", "reason"),
    [
        (TP2, "cuda", GPU, None),
        (TP2, "cuda", replace(GPU, compute_capability=80), None),
        (TP2, "cuda", replace(GPU, compute_capability=None), None),
        ({}, "cuda", GPU, "each layer is on one device"),
        ({"pipeline_parallel_size": 2}, "cuda", GPU, "each layer is on one device"),
        (TP2, "cpu", MACHINE, "the device is cpu"),
        (TP2 | {"symmetric_memory": False}, "cuda", GPU, "--no-symmetric-memory"),
        (
            TP2,
            "cuda",
            replace(GPU, compute_capability=75),
            "it needs compute capability 8.0, and this GPU has 7.5",
        ),
    ],
)
def test_symmetric_memory_has_a_reason(options, device, machine, reason):
    choice = choose_symmetric_memory(Settings.from_options(options), device, machine)
    assert choice.value is (reason is None)
    assert choice.reason == (reason or choice.reason)
    assert ("up to 4 MiB" in choice.reason) is choice.value


def test_the_all_reduce_is_described(quire_registries):
    on_cpu = composed_grid(quire_registries, **TP2)
    assert on_cpu.all_reduce == "shared memory on one machine, Gloo between machines"
    on_gpus = replace(on_cpu, device="cuda")
    assert on_gpus.all_reduce == "NCCL (the device is cpu)"
    settings = Settings.from_options(TP2)
    chosen = replace(on_gpus, symmetric_memory=choose_symmetric_memory(settings, "cuda", GPU))
    assert chosen.all_reduce.startswith("symmetric memory for up to 4 MiB, if the GPUs")
