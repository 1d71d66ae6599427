"""The experts' kernels compile for GPUs that are not here, fit into them and spill nothing."""

import pytest
from dry_launch import CompiledKernel, compiled_in_child

KERNELS = {
    "_count_kernel", "_scan_kernel", "_place_kernel", "_gather_kernel", "_combine_kernel",
    "_grouped_kernel", "_clamped_kernel",
}  # fmt: skip


def assert_good(kernels: list[CompiledKernel]) -> None:
    assert {kernel.name for kernel in kernels} == KERNELS
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_what_an_ordinary_model_runs_compiles(capability):
    assert_good(compiled_in_child("expert_launches:ordinary", capability))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_sizes_that_no_model_has_compile(capability):
    kernels = compiled_in_child("expert_launches:odd", capability)
    assert all(kernel.fits() for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_size_and_dtype_compiles(capability):
    assert_good(compiled_in_child("expert_launches:everything", capability))
