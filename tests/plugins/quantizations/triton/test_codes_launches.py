"""The products with codes compile for GPUs that are not here, fit into them and spill nothing."""

import pytest
from dry_launch import CompiledKernel, compiled_in_child

KERNELS = {"_product_kernel", "_grouped_kernel", "_sum_kernel"}


def assert_good(kernels: list[CompiledKernel], names: set[str] = KERNELS) -> None:
    assert {kernel.name for kernel in kernels} == names
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_what_an_ordinary_model_runs_compiles(capability):
    assert_good(compiled_in_child("codes_launches:ordinary", capability))


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_every_format_compiles(dtype, capability):
    kernels = compiled_in_child(f"codes_launches:every_format_{dtype}", capability)
    assert_good(kernels, KERNELS | {"_gather_kernel"})


@pytest.mark.slow
def test_float8_by_an_instruction_compiles():
    assert_good(compiled_in_child("codes_launches:with_float8", 90))
