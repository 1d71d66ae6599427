"""Selection and order of sampler steps, and the steps that the sampler fuses."""

from dataclasses import replace

import pytest

from quire.compose.choices.sampler_choice import (
    choose_samplers,
    fused_steps,
    offered_fields,
    offered_logits_processors,
)
from quire.compose.composition import Choice
from quire.errors import RefusedError

PENALTIES = ("classifier_free_guidance", "dry", "repetition_penalty", "sampled_token_penalties")
CONTROL = ("allowed_token_ids", "bad_words", "logit_bias", "watermark")
TEMPERATURES = ("dynamic_temperature", "quadratic_smoothing", "temperature")
FILTERS = (
    "epsilon_cutoff", "eta_cutoff", "min_p", "mirostat", "top_a", "top_k_top_p", "top_n_sigma",
    "typical_p", "xtc",
)  # fmt: skip


def chosen(registries, *names, kernels="triton"):
    return choose_samplers(registries, names, kernels)


@pytest.mark.parametrize(
    ("kernels", "sampler"),
    [("torch", "torch_gumbel"), ("triton", "gumbel"), ("native", "cpu_gumbel")],
)
def test_the_default_sampler_is_the_one_that_can_run(quire_registries, kernels, sampler):
    samplers = chosen(quire_registries, "default", kernels=kernels)
    names = [each.name for each in samplers]
    assert names == [*PENALTIES, *CONTROL, *TEMPERATURES, *FILTERS, sampler]


def test_a_sampler_whose_kernels_are_off_is_refused_with_the_way_out(quire_registries):
    with pytest.raises(RefusedError, match=r"'gumbel'.*use 'torch_gumbel', or --kernels triton"):
        chosen(quire_registries, "temperature", "gumbel", kernels="torch")
    with pytest.raises(RefusedError, match=r"'cpu_gumbel'.*use 'gumbel', or --kernels native"):
        chosen(quire_registries, "temperature", "cpu_gumbel", kernels="triton")


@pytest.mark.parametrize("kernels", ["triton", "native"])
def test_the_default_pipeline_is_fused_as_a_whole(quire_registries, kernels):
    samplers = chosen(quire_registries, "default", kernels=kernels)
    fused = [samplers[index].name for index in fused_steps(samplers)]
    assert fused == ["temperature", "min_p", "top_k_top_p"]


def test_a_field_that_a_step_in_use_reads_is_not_offered(quire_registries):
    offered = offered_fields(quire_registries, chosen(quire_registries, "temperature", "gumbel"))
    assert not {"temperature", "top_k", "min_p"} & offered.keys()
    assert "--samplers default,xtc" in offered["xtc_probability"]


def test_logits_processors_that_are_not_in_use_are_offered_by_name(quire_registries):
    samplers = chosen(quire_registries, "temperature", "gumbel")
    offered = offered_logits_processors(quire_registries, samplers)
    assert "temperature" not in offered
    assert "torch_gumbel" not in offered
    way = "start with --samplers default,xtc, and set its fields (xtc_probability, xtc_threshold)"
    assert way in offered["xtc"]


def test_a_sampler_that_fuses_nothing_has_no_fused_steps(quire_registries):
    assert fused_steps(chosen(quire_registries, "default", kernels="torch")) == ()


def test_nothing_is_fused_if_a_step_is_left_out(quire_registries):
    # The sampler would filter by min-p, which was not asked for.
    assert fused_steps(chosen(quire_registries, "temperature", "top_k_top_p", "gumbel")) == ()


def from_acme(choice, distribution="acme-quire", **capabilities):
    entry = choice.entry
    own = replace(
        entry,
        source=replace(entry.source, distribution=distribution),
        capabilities=replace(entry.capabilities, **capabilities),
    )
    return Choice("sampler", own, "asked for")


def with_foreign(registries, *names, fuses=("temperature", "min_p", "top_k_top_p")):
    """The default pipeline, in which another distribution has these steps and the sampler."""
    samplers = chosen(registries, "default")
    return [
        from_acme(each, fuses=fuses) if each.name == "gumbel"
        else from_acme(each) if each.name in names
        else each
        for each in samplers
    ]  # fmt: skip


def names_of_fused(samplers):
    return [samplers[index].name for index in fused_steps(samplers)]


def test_a_third_partys_sampler_fuses_its_own_steps_and_ours(quire_registries):
    expected = ["temperature", "min_p", "top_k_top_p"]
    assert names_of_fused(with_foreign(quire_registries)) == expected
    assert names_of_fused(with_foreign(quire_registries, "min_p")) == expected
    assert names_of_fused(with_foreign(quire_registries, *expected)) == expected


def test_a_step_of_yet_another_distribution_is_not_fused(quire_registries):
    samplers = with_foreign(quire_registries)
    samplers = [
        from_acme(each, "other-quire") if each.name == "min_p" else each for each in samplers
    ]
    assert names_of_fused(samplers) == []


def test_a_step_that_does_not_declare_it_is_not_fused(quire_registries):
    fuses = ("dry", "temperature")
    assert names_of_fused(with_foreign(quire_registries, fuses=fuses)) == []
    samplers = with_foreign(quire_registries, fuses=("temperature",))
    assert names_of_fused(samplers) == ["temperature"]
    samplers = [
        from_acme(each, is_fusible=False) if each.name == "temperature" else each
        for each in samplers
    ]
    assert names_of_fused(samplers) == []


def test_a_third_partys_step_of_the_same_name_is_not_fused(quire_registries):
    samplers = list(chosen(quire_registries, "default"))
    index = [each.name for each in samplers].index("min_p")
    entry = samplers[index].entry
    foreign = replace(entry, source=replace(entry.source, distribution="acme-quire"))
    samplers[index] = Choice("sampler", foreign, "asked for")
    assert fused_steps(samplers) == ()
