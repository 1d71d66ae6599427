"""Every kernel of the sampler compiles for GPUs that this machine does not have."""

import pytest
from dry_launch import compiled_in_child


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize(
    "launches", ["usual_samplings", pytest.param("every_sampling", marks=pytest.mark.slow)]
)
def test_the_kernels_fit_and_spill_nothing(launches, capability):
    kernels = compiled_in_child(f"gumbel_launches:{launches}", capability)
    assert {kernel.name for kernel in kernels} == {
        "best_of_chunks",
        "weigh_chunks",
        "select_tokens",
    }
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel
