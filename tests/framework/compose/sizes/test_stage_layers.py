"""Layers of pipeline stages: the largest stage is as small as any division makes it."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
import torch
from grid_parts import MACHINE, composed_grid
from hypothesis import given
from hypothesis import strategies as st

from quire.compose.sizes.stage_layers import balanced_ranges
from quire.compose.sizes.weight_bytes import weight_bytes, weight_sizes
from quire.errors import SettingsError
from quire.layers import LayerContext
from quire.layers.parallel import SingleDevice

LAYER_SIZES = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def divisions(num_layers, num_stages):
    """Yield all divisions into contiguous ranges of at least one layer."""
    for cuts in combinations(range(1, num_layers), num_stages - 1):
        yield [range(*ends) for ends in pairwise((0, *cuts, num_layers))]


@given(LAYER_SIZES, st.integers(0, 30), st.integers(0, 30), st.data())
def test_no_division_has_a_smaller_largest_stage(layers, embedding, head, data):
    num_stages = data.draw(st.integers(1, len(layers)))

    def stage_bytes(part):
        ends = (part.start == 0) * embedding + (part.stop == len(layers)) * head
        return sum(layers[part.start : part.stop]) + ends

    def order(parts):
        sizes = [stage_bytes(part) for part in parts]
        return max(sizes), sum(size**2 for size in sizes)

    found = balanced_ranges(len(layers), num_stages, stage_bytes)
    every = list(divisions(len(layers), num_stages))
    assert list(found) in every
    assert order(found) == min(map(order, every))


def test_equal_layers_without_ends_are_divided_evenly():
    assert balanced_ranges(6, 3, len) == (range(2), range(2, 4), range(4, 6))
    sizes = sorted(len(part) for part in balanced_ranges(10, 4, len))
    assert sizes == [2, 2, 3, 3], "a sum of squares, not only a maximum"


def test_a_model_of_hundreds_of_layers_is_divided_at_once():
    parts = balanced_ranges(200, 16, lambda part: len(part) + 4 * (part.stop == 200))
    assert (max(map(len, parts)), len(parts[-1])) == (13, 9)


def layers_of(registries, *config, **options):
    return [len(part) for part in composed_grid(registries, *config, **options).stage_layers]


def test_one_stage_has_all_layers(quire_registries):
    assert composed_grid(quire_registries).stage_layers == (range(4),)


def test_a_large_vocabulary_takes_layers_from_the_first_and_the_last_stage(quire_registries):
    options = {"pipeline_parallel_size": 3, "num_kv_blocks": 2}
    few = {"num_hidden_layers": 12}
    assert layers_of(quire_registries, few | {"vocab_size": 2}, **options) == [4, 4, 4]
    # A layer has about 31,000 parameters; an embedding of 1,500 rows of 64 as many as 3 layers.
    assert layers_of(quire_registries, few | {"vocab_size": 1500}, **options) == [3, 6, 3]
    tied = few | {"vocab_size": 1500, "tie_word_embeddings": True}
    assert layers_of(quire_registries, tied, **options) == [3, 6, 3], "each has a copy"


def test_kv_makes_the_vocabulary_matter_less(quire_registries):
    config = {"num_hidden_layers": 12, "vocab_size": 1500}
    stages = {"pipeline_parallel_size": 3}
    assert layers_of(quire_registries, config, num_kv_blocks=5000, **stages) == [4, 4, 4]
    given_bytes = {"kv_cache_memory_bytes": 10**9}
    assert layers_of(quire_registries, config, **given_bytes, **stages) == [4, 4, 4]
    # A request of 128 tokens has 32 KiB of KV a layer, a quarter of its weights.
    assert layers_of(quire_registries, config, **stages) == [3, 6, 3]
    long = config | {"max_position_embeddings": 4096}
    assert layers_of(quire_registries, long, **stages) == [4, 4, 4]


def test_layers_with_a_window_hold_less(quire_registries):
    windows = {
        "architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "hidden_activation": None,
        "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6, "num_hidden_layers": 8, "vocab_size": 2,
        "max_position_embeddings": 100_000, "sliding_window": 16,
    }  # fmt: skip
    first_full = ["full_attention"] * 2 + ["sliding_attention"] * 6
    config = windows | {"layer_types": first_full}
    options = {"pipeline_parallel_size": 2, "max_num_batched_tokens": 64}
    assert layers_of(quire_registries, config, **options) == [1, 7]


def test_the_layers_that_the_user_gives_are_taken(quire_registries):
    options = {"pipeline_parallel_size": 3, "pipeline_layers": [2, 1, 1]}
    composition = composed_grid(quire_registries, **options)
    assert composition.stage_layers == (range(2), range(2, 3), range(3, 4))


@pytest.mark.parametrize(
    ("counts", "way_out"),
    [
        ([1, 1, 1], "adds up to 3, and the model has 4 layers; the last number must be 2"),
        ([1, 2, 4], "adds up to 7, and the model has 4 layers; the last number must be 1"),
        ([2, 2, 4], "adds up to 8, and the model has 4 layers; give smaller numbers"),
    ],
)
def test_layers_that_are_not_the_models_are_refused(quire_registries, counts, way_out):
    with pytest.raises(SettingsError, match=way_out):
        composed_grid(quire_registries, pipeline_parallel_size=3, pipeline_layers=counts)


def test_one_stage_of_other_layers_than_the_models_is_refused(quire_registries):
    with pytest.raises(SettingsError, match="the last number must be 4"):
        composed_grid(quire_registries, pipeline_layers=[3])


def test_more_stages_than_layers_are_refused(quire_registries):
    assert layers_of(quire_registries, pipeline_parallel_size=4) == [1, 1, 1, 1]
    with pytest.raises(SettingsError, match=r"5 is more than the model's 4 layers; .* at most 4"):
        composed_grid(quire_registries, pipeline_parallel_size=5)


def test_all_processes_choose_the_same(quire_registries):
    options = {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    one, other = (composed_grid(quire_registries, **options) for _ in range(2))
    assert one.stage_layers == other.stage_layers


class Rank(SingleDevice):
    """A rank of a group that computes nothing together."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size


def held_bytes(registries, composition, rank):
    """Build the part of the model that a rank holds, and return the bytes of its parameters."""
    stage, tp_rank = composition.grid.place(rank)
    context = LayerContext(
        dtype=torch.float32,
        device=torch.device("meta"),
        tp=Rank(tp_rank, composition.grid.tp_size),
        layers=composition.stage_layers[stage],
    )
    model = registries.models.load(composition.model.entry)(composition.description, context)
    return sum(parameter.nbytes for parameter in model.parameters())


ARCHITECTURES = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 32},
    "Gemma3ForCausalLM": {
        "head_dim": 16, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6,
        "hidden_activation": None, "sliding_window": 32,
    },
}  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize(("tp_size", "pp_size"), [(1, 1), (2, 1), (4, 1), (1, 3), (4, 3)])
def test_ranks_hold_what_is_estimated(quire_registries, architecture, is_tied, tp_size, pp_size):
    """With four ranks and two KV heads, each of these is on two; 323 ids are not divided.

    Not counted: norms are whole on every rank, and those of heads are repeated for each head.
    """
    config = {
        "architectures": [architecture], "vocab_size": 323, "tie_word_embeddings": is_tied,
        **ARCHITECTURES[architecture],
    }  # fmt: skip
    options = {"dtype": "float32", "quantization": "none"}
    composition = composed_grid(
        quire_registries,
        config,
        tensor_parallel_size=tp_size,
        pipeline_parallel_size=pp_size,
        **options,
    )
    for rank in range(composition.grid.size):
        held = held_bytes(quire_registries, composition, rank)
        expected = weight_bytes(composition, tp_size, rank // tp_size)
        assert held == pytest.approx(expected, rel=0.005 if tp_size == 1 else 0.025)


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_stages_have_all_weights_and_a_tied_head_twice(quire_registries, is_tied):
    config = {"tie_word_embeddings": is_tied}
    whole = composed_grid(quire_registries, config)
    stages = composed_grid(quire_registries, config, pipeline_parallel_size=3)
    assert weight_bytes(whole, 1) == 4 * whole.description.num_params
    total = sum(weight_bytes(stages, 1, stage) for stage in range(3))
    assert total == weight_bytes(whole, 1) + is_tied * weight_sizes(whole, 1).embedding


GEMMA4 = {
    "architectures": ["Gemma4ForCausalLM"], "head_dim": 16, "global_head_dim": 16,
    "layer_types": ["full_attention"] * 4, "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 2048,
}  # fmt: skip


@pytest.mark.parametrize("tp_size", [1, 2])
def test_tables_by_token_id_are_divided_and_counted(quire_registries, tp_size):
    composition = composed_grid(
        quire_registries,
        GEMMA4,
        tensor_parallel_size=tp_size,
        dtype="float32",
        quantization="none",
    )
    held = held_bytes(quire_registries, composition, 0)
    assert weight_sizes(composition, tp_size).tables == 4 * 2048 * 4 * 16 // tp_size
    assert held == pytest.approx(weight_bytes(composition, tp_size), rel=0.06)


def test_quantization_leaves_tables_by_token_id_in_the_type_of_the_checkpoint(quire_registries):
    config = {**GEMMA4, "dtype": "bfloat16"}
    compiles = replace(MACHINE, native_unavailable_reason=None)
    composition = composed_grid(
        quire_registries, config, compiles, dtype="float32", quantization="int8"
    )
    assert weight_sizes(composition, 1).tables == 2 * 2048 * 4 * 16
