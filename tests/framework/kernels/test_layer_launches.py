"""The layers' kernels compile for GPUs that are not here, fit into them and spill nothing."""

import pytest
from dry_launch import CompiledKernel, compiled_in_child

KERNELS = {
    *("_add_rms_norm_kernel", "_add_layer_norm_kernel", "_group_norm_kernel"),
    *("_gate_kernel", "_activate_kernel", "_shrink_kernel", "_expand_kernel"),
}


def assert_good(kernels: list[CompiledKernel]) -> None:
    assert {kernel.name for kernel in kernels} == KERNELS
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_what_an_ordinary_model_runs_compiles(capability):
    assert_good(compiled_in_child("layer_launches:ordinary", capability))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_every_size_and_dtype_compiles(capability):
    assert_good(compiled_in_child("layer_launches:everything", capability))
