"""Kernels run where they can, and a device that cannot run them is told why."""

from itertools import pairwise

import pytest

from quire.errors import RefusedError
from quire.kernel_choice import choose_kernels, graph_sizes
from quire.machine import Machine


def gpu(capability):
    return Machine(frozenset(), has_cuda=True, has_triton=True, compute_capability=capability)


@pytest.mark.parametrize(
    ("capability", "chosen"), [(70, "torch"), (75, "torch"), (80, "triton"), (90, "triton")]
)
def test_an_old_gpu_runs_torch(capability, chosen):
    assert choose_kernels("auto", gpu(capability), "cuda") == chosen
    assert choose_kernels("torch", gpu(capability), "cuda") == "torch"


def test_a_gpu_that_nobody_can_ask_is_taken_for_a_new_one():
    assert choose_kernels("auto", gpu(None), "cuda") == "triton"


def test_kernels_that_an_old_gpu_is_to_run_are_refused_with_the_reason():
    with pytest.raises(RefusedError, match=r"need compute capability 8.0, and this GPU has 7.5"):
        choose_kernels("triton", gpu(75), "cuda")


def test_the_processor_of_an_old_gpu_may_interpret_kernels():
    machine = Machine(
        frozenset(), has_cuda=True, has_triton=True, interprets_kernels=True, compute_capability=75
    )
    assert choose_kernels("triton", machine, "cpu") == "triton"


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
