import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_driver import build_driver

from quire.machine import instruction_sets, machine
from quire.machine.instruction_sets import bf16_unavailable_reason
from quire.machine.machine import Machine

OLD = Machine(frozenset({"avx2"}), has_cuda=False)
NEW = Machine(frozenset({"avx2", "avx512_bf16"}), has_cuda=False)
ARM = Machine(frozenset({"bf16"}), has_cuda=False)
GPU = Machine(frozenset({"avx2"}), has_cuda=True)
AMX = Machine(frozenset({"avx2", "avx512_bf16", "amx_bf16"}), has_cuda=False)
COMPILES = replace(OLD, native_unavailable_reason=None, native_bf16_unavailable_reason="too old")
MULTIPLIES = replace(NEW, native_unavailable_reason=None, native_bf16_unavailable_reason=None)


@pytest.mark.parametrize(
    ("machine", "checkpoint", "device", "dtype"),
    [
        (OLD, "bfloat16", "cpu", "float32"),
        (OLD, "float16", "cpu", "float32"),
        (OLD, "float32", "cpu", "float32"),
        (NEW, "bfloat16", "cpu", "bfloat16"),
        (AMX, "bfloat16", "cpu", "bfloat16"),
        (AMX, "float16", "cpu", "float32"),
        (COMPILES, "bfloat16", "cpu", "float32"),
        (COMPILES, "float16", "cpu", "float32"),
        (MULTIPLIES, "bfloat16", "cpu", "bfloat16"),
        (MULTIPLIES, "float16", "cpu", "float32"),
        (MULTIPLIES, "float32", "cpu", "float32"),
        (NEW, "float16", "cpu", "float32"),
        (ARM, "bfloat16", "cpu", "bfloat16"),
        (GPU, "bfloat16", "cuda", "bfloat16"),
        (GPU, "float16", "cuda", "float16"),
        (GPU, "bfloat16", "cpu", "float32"),
    ],
)
def test_the_dtype_is_what_the_machine_is_good_at(machine, checkpoint, device, dtype):
    chosen, why = machine.dtype("auto", checkpoint, device)
    assert chosen == dtype
    assert why


def test_the_reason_names_what_is_slow():
    why = OLD.dtype("auto", "bfloat16", "cpu")[1]
    assert "bfloat16 matrix products are many times slower on this CPU" in why


def test_the_reason_for_bfloat16_names_the_way_back():
    assert MULTIPLIES.dtype("auto", "bfloat16", "cpu")[1] == (
        "the checkpoint's own, and this processor multiplies it; --dtype float32 computes without "
        "rounding"
    )


def test_the_reason_for_float32_is_that_of_the_kernels():
    why = COMPILES.dtype("auto", "bfloat16", "cpu")[1]
    assert why == "native kernels multiply bfloat16 weights in float32: too old"
    why = COMPILES.dtype("auto", "float16", "cpu")[1]
    assert why == "float16 matrix products are many times slower on this CPU"


def test_native_kernels_compute_in_float32_and_where_they_multiply_it_in_bfloat16():
    assert NEW.native_refusal("float32") == "the compiler was not looked for"
    assert NEW.native_refusal("bfloat16") == "the compiler was not looked for"
    assert COMPILES.native_refusal("float32") is None
    assert COMPILES.native_refusal("bfloat16") == "they cannot compute in bfloat16: too old"
    assert MULTIPLIES.native_refusal("float32") is None
    assert MULTIPLIES.native_refusal("bfloat16") is None
    assert MULTIPLIES.native_refusal("float16") == (
        "they compute in float32 or bfloat16, and the compute dtype is float16"
    )


@pytest.mark.parametrize("machine", [OLD, NEW, GPU])
def test_what_the_user_asks_for_is_taken(machine):
    assert machine.dtype("float16", "bfloat16", "cpu") == ("float16", "asked for")


def test_the_gpu_is_the_default_if_there_is_one():
    assert GPU.device("auto") == "cuda"
    assert OLD.device("auto") == "cpu"
    assert GPU.device("cpu") == "cpu"
    assert OLD.device("cuda") == "cuda"


def test_this_machine_knows_what_it_is():
    here = Machine.here(native_unavailable_reason=None)
    assert isinstance(here.cpu_flags, frozenset)
    assert here.has_triton == bool(find_spec("triton"))
    assert here.has_cuda or here.compute_capability is None
    assert here.native_unavailable_reason is None
    reason = bf16_unavailable_reason(instruction_sets.here(), here.cpu_flags)
    assert here.native_bf16_unavailable_reason == reason
    without = Machine.here(native_unavailable_reason="there is no g++")
    assert without.native_unavailable_reason == "there is no g++"


@pytest.mark.parametrize(("value", "interprets"), [("1", True), ("0", False), (None, False)])
def test_kernels_are_interpreted_if_the_environment_says_so(monkeypatch, value, interprets):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if value is not None:
        monkeypatch.setenv("TRITON_INTERPRET", value)
    assert Machine.here(native_unavailable_reason=None).interprets_kernels is interprets


ASK = """
import sys
from quire.machine.machine import Machine
here = Machine.here(native_unavailable_reason=None)
loaded = [name in sys.modules for name in ("quire.machine.nvml", "torch")]
print(here.compute_capability, here.num_gpus, *loaded)
"""

GPU_THERE = """
import quire.machine.machine as machine
machine.NVIDIA_CONTROL = machine.Path("/")
machine.version = lambda _: "2"
"""


def asked(**environment: str) -> str:
    """Run code in a new process, which has imported nothing yet."""
    command = [sys.executable, "-c", environment.pop("code", ASK)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.mark.skipif(Machine.here(native_unavailable_reason=None).has_cuda, reason="there is a GPU")
def test_without_a_gpu_no_driver_is_looked_for():
    assert asked() == "None None False False"


def test_a_gpu_says_what_kind_it_is_before_torch_is_there(tmp_path):
    build_driver(tmp_path)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1"}
    assert asked(code=GPU_THERE + ASK, **environment) == "86 1 True False"


def test_a_gpu_that_is_hidden_is_not_there(tmp_path):
    build_driver(tmp_path)
    environment = {"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    assert asked(code=GPU_THERE + ASK, **environment).startswith("None None False")


def test_the_checkpoints_own_type_is_not_a_choice():
    assert OLD.dtype("auto", "float32", "cpu") == ("float32", "the checkpoint's own")
    assert GPU.dtype("auto", "float16", "cuda") == ("float16", "the checkpoint's own")
    assert OLD.dtype("float16", "bfloat16", "cpu") == ("float16", "asked for")


@pytest.mark.parametrize(
    ("torch", "hidden", "has_cuda"),
    [
        ("2.11+cu128", "0", True),
        ("2.11", None, True),
        ("2.11+cpu", "0", False),
        ("2.11", " ", False),
    ],
)
def test_a_gpu_counts_where_it_is_seen_and_torch_can_use_it(monkeypatch, torch, hidden, has_cuda):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    monkeypatch.setattr(machine, "NVIDIA_CONTROL", Path("/"))
    monkeypatch.setattr(machine, "version", lambda _: torch)
    assert Machine.here(native_unavailable_reason=None).has_cuda is has_cuda
    monkeypatch.setattr(machine, "NVIDIA_CONTROL", Path("/no/such/device"))
    assert Machine.here(native_unavailable_reason=None).has_cuda is False


@pytest.mark.parametrize("wanted", ["cpu", "cuda", "tpu"])
def test_a_device_that_is_asked_for_is_the_one(wanted):
    assert {GPU.device(wanted), OLD.device(wanted)} == {wanted}
    assert (GPU.device("auto"), OLD.device("auto")) == ("cuda", "cpu")
