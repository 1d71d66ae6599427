"""Which steps run, in which order, and which of them the draw can do itself."""

from dataclasses import replace

import pytest

from quire.compose.composition import Choice
from quire.compose.sampler_choice import choose_samplers, fused_steps
from quire.errors import RefusedError


def chosen(registries, *names, kernels="triton"):
    return choose_samplers(registries, names, kernels)


@pytest.mark.parametrize(
    ("kernels", "sample"),
    [("torch", "categorical"), ("triton", "gumbel"), ("native", "cpu_gumbel")],
)
def test_the_default_draw_is_the_one_that_can_run(quire_registries, kernels, draw):
    samplers = chosen(quire_registries, "default", kernels=kernels)
    assert [each.name for each in samplers] == ["temperature", "min_p", "top_k_top_p", draw]


def test_a_draw_whose_kernels_are_off_is_refused_with_the_way_out(quire_registries):
    with pytest.raises(RefusedError, match=r"'gumbel'.*take 'categorical', or --kernels triton"):
        chosen(quire_registries, "temperature", "gumbel", kernels="torch")
    with pytest.raises(RefusedError, match=r"'cpu_gumbel'.*take 'gumbel', or --kernels native"):
        chosen(quire_registries, "temperature", "cpu_gumbel", kernels="triton")


@pytest.mark.parametrize("kernels", ["triton", "native"])
def test_the_default_pipeline_is_absorbed_as_a_whole(quire_registries, kernels):
    assert fused_steps(chosen(quire_registries, "default", kernels=kernels)) == (0, 1, 2)


def test_a_draw_that_absorbs_nothing_has_no_absorbed_steps(quire_registries):
    assert fused_steps(chosen(quire_registries, "default", kernels="torch")) == ()


def test_nothing_is_absorbed_where_a_step_is_left_out(quire_registries):
    # The draw would filter by min-p, and nobody asked for that.
    assert fused_steps(chosen(quire_registries, "temperature", "top_k_top_p", "gumbel")) == ()


def test_a_strangers_step_of_the_same_name_is_not_absorbed(quire_registries):
    samplers = list(chosen(quire_registries, "default"))
    entry = samplers[1].entry
    strange = replace(entry, source=replace(entry.source, distribution="acme-quire"))
    samplers[1] = Choice("sampler", strange, "asked for")
    assert fused_steps(samplers) == ()
