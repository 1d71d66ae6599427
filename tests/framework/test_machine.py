import pytest

from quire.machine import Machine

OLD = Machine(frozenset({"avx2"}), has_cuda=False)
NEW = Machine(frozenset({"avx2", "avx512_bf16"}), has_cuda=False)
ARM = Machine(frozenset({"bf16"}), has_cuda=False)
GPU = Machine(frozenset({"avx2"}), has_cuda=True)


@pytest.mark.parametrize(
    ("machine", "checkpoint", "device", "dtype"),
    [
        (OLD, "bfloat16", "cpu", "float32"),
        (OLD, "float16", "cpu", "float32"),
        (OLD, "float32", "cpu", "float32"),
        (NEW, "bfloat16", "cpu", "bfloat16"),
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


@pytest.mark.parametrize("machine", [OLD, NEW, GPU])
def test_what_the_user_asks_for_is_taken(machine):
    assert machine.dtype("float16", "bfloat16", "cpu") == ("float16", "asked for")


def test_the_gpu_is_taken_if_there_is_one_and_nobody_says_otherwise():
    assert GPU.device("auto") == "cuda"
    assert OLD.device("auto") == "cpu"
    assert GPU.device("cpu") == "cpu"
    assert OLD.device("cuda") == "cuda"


def test_this_machine_has_memory_and_names_its_processor():
    here = Machine.here()
    assert isinstance(here.cpu_flags, frozenset)
