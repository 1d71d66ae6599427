"""Selection of kernels and graphs, with the reasons."""

from dataclasses import replace
from itertools import pairwise

import pytest

from quire.compose.choices.kernel_choice import (
    check_batch_invariant,
    choose_cpu_graphs,
    choose_cuda_graphs,
    choose_kernels,
    graph_sizes,
)
from quire.compose.composition import Decision
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.model import ModelCapabilities
from quire.machine.machine import Machine


def kernels(*asked):
    chosen = choose_kernels(*asked)
    assert chosen.reason
    return chosen.value


def gpu(capability):
    return Machine(frozenset(), has_cuda=True, has_triton=True, compute_capability=capability)


@pytest.mark.parametrize(
    ("capability", "chosen"), [(70, "torch"), (75, "torch"), (80, "triton"), (90, "triton")]
)
def test_an_old_gpu_runs_torch(capability, chosen):
    assert kernels("auto", gpu(capability), "cuda", "bfloat16") == chosen
    assert kernels("torch", gpu(capability), "cuda", "bfloat16") == "torch"


def test_a_gpu_of_unknown_capability_is_taken_for_a_new_one():
    assert kernels("auto", gpu(None), "cuda", "bfloat16") == "triton"


def test_kernels_that_an_old_gpu_is_to_run_are_refused_with_the_reason():
    with pytest.raises(RefusedError, match=r"need compute capability 8.0, and this GPU has 7.5"):
        choose_kernels("triton", gpu(75), "cuda", "bfloat16")


def test_the_processor_of_an_old_gpu_may_interpret_kernels():
    machine = Machine(
        frozenset(), has_cuda=True, has_triton=True, interprets_kernels=True, compute_capability=75
    )
    assert kernels("triton", machine, "cpu", "float32") == "triton"


COMPILES = Machine(frozenset({"avx2"}), has_cuda=False, native_unavailable_reason=None)
MULTIPLIES = replace(COMPILES, native_bf16_unavailable_reason=None)
NO_COMPILER = Machine(
    frozenset({"avx2"}), has_cuda=False, native_unavailable_reason="there is no g++"
)


def test_a_cpu_runs_native_kernels_in_float32_where_they_can_be_compiled():
    assert kernels("auto", COMPILES, "cpu", "float32") == "native"
    assert kernels("native", COMPILES, "cpu", "float32") == "native"
    assert kernels("torch", COMPILES, "cpu", "float32") == "torch"
    assert kernels("auto", NO_COMPILER, "cpu", "float32") == "torch"
    assert kernels("auto", COMPILES, "cpu", "bfloat16") == "torch"


def test_they_run_in_bfloat16_where_they_multiply_it():
    assert kernels("auto", MULTIPLIES, "cpu", "bfloat16") == "native"
    assert kernels("native", MULTIPLIES, "cpu", "bfloat16") == "native"
    assert kernels("auto", MULTIPLIES, "cpu", "float16") == "torch"


def test_the_kernels_have_a_reason():
    assert choose_kernels("torch", COMPILES, "cpu", "float32") == Decision("torch", "asked for")
    without = choose_kernels("auto", NO_COMPILER, "cpu", "float32")
    assert without == Decision("torch", "there is no g++")
    reason = choose_kernels("auto", COMPILES, "cpu", "bfloat16").reason
    assert reason == "they cannot compute in bfloat16: the instruction set was not looked for"
    assert choose_kernels("auto", gpu(75), "cuda", "float16").reason.endswith("this GPU has 7.5")


def test_where_the_compute_type_is_the_obstacle_the_way_out_is_another():
    with pytest.raises(RefusedError, match=r"in bfloat16: .* looked for; use --dtype float32"):
        choose_kernels("native", COMPILES, "cpu", "bfloat16")
    with pytest.raises(RefusedError, match=r"is float16; use --dtype float32"):
        choose_kernels("native", MULTIPLIES, "cpu", "float16")
    with pytest.raises(RefusedError, match=r"no g\+\+; use --kernels torch"):
        choose_kernels("native", NO_COMPILER, "cpu", "bfloat16")
    with pytest.raises(RefusedError, match=r"the device is cuda.*; use --kernels torch"):
        choose_kernels("native", gpu(80), "cuda", "bfloat16")


@pytest.mark.parametrize(
    ("machine", "device", "dtype", "reason"),
    [
        (NO_COMPILER, "cpu", "float32", "there is no g"),
        (COMPILES, "cpu", "bfloat16", "cannot compute in bfloat16: the instruction set"),
        (gpu(90), "cuda", "float32", "the device is cuda"),
    ],
)
def test_native_kernels_that_were_asked_for_and_cannot_run_are_refused(
    machine, device, dtype, reason
):
    with pytest.raises(RefusedError, match=f"native kernels cannot run here: .*{reason}"):
        choose_kernels("native", machine, device, dtype)


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 16, 17, 100, 256, 384, 400, 512, 1024])
def test_less_than_a_third_of_a_large_step_is_padding(largest):
    sizes = graph_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    for smaller, size in pairwise(sizes):
        num_padding_rows = size - smaller - 1
        assert size <= 16 or num_padding_rows < size / 3
    assert len(sizes) <= 17


def test_the_usual_sizes():
    assert graph_sizes(256) == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert len(graph_sizes(512)) == 15


def graphs(device="cuda", kernels="triton", **options):
    settings = Settings.from_options(options).for_device(device)
    return choose_cuda_graphs(settings, device, Decision(kernels, "asked for"), ())


NATIVE = ModelCapabilities(describe="acme.describe:describe")


def cpu_graphs(device="cpu", kernels="native", packs=True, model=NATIVE, **options):
    settings, chosen = Settings.from_options(options), Decision(kernels, "asked for")
    return choose_cpu_graphs(settings, device, chosen, (), packs=packs, model=model)


def test_graphs_are_off_for_the_reason_that_their_kernels_have():
    fallen = Decision("torch", "there is no g++")
    assert choose_cpu_graphs(Settings(), "cpu", fallen, (), packs=True, model=NATIVE).reason == (
        "torch kernels: there is no g++"
    )
    assert choose_cuda_graphs(Settings(), "cuda", fallen, ()).reason == (
        "none: torch kernels: there is no g++"
    )


@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_sharded_layers_and_stages_have_graphs(tp_size, pp_size):
    grid = {"tensor_parallel_size": tp_size, "pipeline_parallel_size": pp_size}
    assert graphs(**grid).value == 256
    assert cpu_graphs(**grid).value is True


def test_a_model_that_torch_computes_in_part_has_no_cpu_graphs():
    model = replace(NATIVE, supports_cpu_graphs=False)
    assert cpu_graphs(model=model) == Decision(False, "torch computes parts of the model")


def test_enforce_eager_turns_graphs_off_on_every_device():
    assert graphs(enforce_eager=True) == Decision(0, "none: --enforce-eager")
    assert cpu_graphs(enforce_eager=True) == Decision(False, "--enforce-eager")


def test_graphs_are_no_larger_than_what_runs():
    assert graphs(max_num_seqs=8, max_cuda_graph_size=64).value == 8
    assert graphs(max_num_seqs=8, max_num_batched_tokens=4).value == 4
    assert graphs(max_num_seqs=2000, max_num_batched_tokens=4000).value == 512


@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_equal_bits_on_a_gpu_need_triton(kernels):
    invariant = Settings.from_options({"batch_invariant": True})
    with pytest.raises(RefusedError, match="leave out --batch-invariant"):
        check_batch_invariant(invariant, "cuda", kernels)
    check_batch_invariant(invariant, "cuda", "triton")
    check_batch_invariant(invariant, "cpu", kernels)
    check_batch_invariant(Settings(), "cuda", kernels)
