"""The estimated memory profile of a GPU equals a calculation by hand."""

import math
from dataclasses import replace

import pytest

from quire.compose.composition import Decision
from quire.compose.sizes.layer_specs import layer_specs
from quire.config import Settings
from quire.interfaces.field_types import FieldType
from quire.launch.composing import compose_engine
from quire.launch.profile_estimate import DRIVER_BYTES, activation_bytes, estimate_profile
from quire.machine.nvml import DeviceMemory
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

MEMORY = DeviceMemory(total=10**10, free=8 * 10**9)
TOKEN_BYTES = 4 * (2 * 64 + (64 + 2 * 32 + 6 * (64 + 32)) + 2 * 16)  # more than the MLP needs


@pytest.fixture(scope="module")
def its(tmp_path_factory):
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM").folder
    settings = Settings.from_options({"model": str(folder), "kernels": "torch"})
    return compose_engine(settings, load_plugins(settings.plugins))


def estimated(its, kernels="torch", graphs=0, **scheduler):
    settings = replace(its.settings, scheduler=replace(its.settings.scheduler, **scheduler))
    composition = replace(
        its.composition,
        kernels=Decision(kernels, "asked for"),
        cuda_graphs=Decision(graphs, "asked for"),
    )
    specs = layer_specs(settings, composition, its.plugins.registries)
    return estimate_profile(settings, composition, 1000, specs, MEMORY)


def column_shapes(its):
    """Shapes of the columns of a slot, for the request fields that are more than a number."""
    types = [field.type for field in its.composition.sampler_fields]
    types = [each for each in types if isinstance(each, FieldType)]
    return [column.shape for each in types for column in each.columns(320)]


def with_mlp(its, size):
    config = {**its.composition.description.config, "intermediate_size": size}
    description = replace(its.composition.description, config=config)
    return replace(its.composition, description=description)


def test_a_token_takes_what_the_larger_of_attention_and_mlp_does(its):
    assert activation_bytes(its.settings, its.composition) == TOKEN_BYTES
    # With an intermediate size of 1,000 the MLP needs more.
    wide = with_mlp(its, 1000)
    assert activation_bytes(its.settings, wide) == 4 * (2 * 64 + 4 * 1000 + 2 * 16)


def test_a_step_is_as_large_as_its_budget_or_as_all_requests_together(its):
    assert estimated(its, max_num_batched_tokens=100).forward_bytes == 100 * TOKEN_BYTES
    few = estimated(its, max_num_batched_tokens=5000, max_num_seqs=2)
    assert few.forward_bytes == 2 * 512 * TOKEN_BYTES
    widest = max(shape[0] for shape in column_shapes(its))
    assert few.sampling_bytes == 2 * (2 * 320 * 4 + 32 * widest)


def test_only_the_last_stage_samples(its):
    specs = layer_specs(its.settings, its.composition, its.plugins.registries)
    given = (its.settings, its.composition, 1000, specs, MEMORY)
    last, other = (estimate_profile(*given, is_last_stage=is_last) for is_last in (True, False))
    assert last.sampling_bytes > 0 == other.sampling_bytes
    assert last.forward_bytes == other.forward_bytes


def test_what_others_use_and_the_driver_are_counted(its):
    profile = estimated(its)
    assert profile.other_bytes == 2 * 10**9 + DRIVER_BYTES
    assert (profile.total_bytes, profile.weight_bytes) == (10**10, 1000)
    assert profile.is_estimated


def test_only_kernels_that_gather_inputs_have_buffers_for_them(its):
    plain = estimated(its, max_num_seqs=4, max_num_batched_tokens=100)
    num_cells = sum(math.prod(shape) for shape in column_shapes(its))
    assert plain.table_bytes == 4 * (512 + 32 + num_cells) * 4
    fused = estimated(its, "triton", max_num_seqs=4, max_num_batched_tokens=100)
    assert fused.table_bytes - plain.table_bytes == 4 * 100 * 8 + 4 * (32 * 4 + 32)


def test_captured_steps_keep_their_own(its):
    assert estimated(its).graph_bytes == 0
    assert estimated(its, "triton", graphs=8).graph_bytes > 8 * (TOKEN_BYTES // 2 + 320 * 4)
