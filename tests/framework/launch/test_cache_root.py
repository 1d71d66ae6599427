"""The root of the block hashes is equal for engines with equal KV, and for no others."""

import os
from dataclasses import replace

import pytest
from grid_parts import composed_engine

from quire.config import Settings
from quire.interfaces.kv_cache import KVPlan
from quire.launch.cache_root import cache_root
from quire.launch.composing import compose_engine
from quire.launch.kv_memory import plan_memory
from quire.machine.machine import Machine
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

GIGABYTE = 10**9


@pytest.fixture
def folder(tmp_path):
    return write_checkpoint(tmp_path / "model", "Qwen3ForCausalLM").folder


def root(folder, **options):
    settings = Settings.from_options({"model": str(folder)} | options)
    composed = compose_engine(settings, load_plugins(settings.plugins))
    registries = composed.plugins.registries
    (plan,) = plan_memory(settings, composed.composition, registries, [GIGABYTE])
    return cache_root(settings.model, composed.composition, plan)


def test_it_is_32_bytes_and_the_same_again(folder):
    assert len(root(folder)) == 32
    assert root(folder) == root(folder)


def test_what_does_not_touch_the_kv_does_not_touch_it(folder):
    options = {"num_kv_blocks": 50, "max_model_len": 64, "max_num_seqs": 3}
    assert root(folder, **options) == root(folder)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"kv_cache_dtype": "int8"},
        {"block_size": 64},
        {"load_format": "dummy"},
    ],
    ids=str,
)
def test_what_changes_the_kv_changes_it(folder, options):
    assert root(folder, **options) != root(folder)


def test_number_types_of_products_and_of_hidden_states_change_it(tmp_path):
    """With one backend and one element type of the cache."""
    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM", torch_dtype="bfloat16").folder
    types = {"attention_backend": "torch_sdpa", "kv_cache_dtype": "bfloat16"}
    dtypes = ("auto", "float32")
    roots = {root(folder, dtype=dtype, **types) for dtype in dtypes}
    roots.add(root(folder, dtype="bfloat16", kernels="torch", **types))
    machine = Machine.here(native_unavailable_reason=native_unavailable_reason())
    assert len(roots) == (3 if machine.native_refusal("bfloat16") is None else 2)


def test_ranks_of_another_grid_store_other_bytes(tmp_path, quire_registries):
    """Each has its own heads and layers, so blocks of another grid must not be found."""

    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM", num_hidden_layers=4).folder

    def root_of(**options):
        its = composed_engine(quire_registries, folder, **options)
        free = [GIGABYTE] * its.composition.grid.pp_size
        plan, *_ = plan_memory(its.settings, its.composition, its.plugins.registries, free)
        return cache_root(its.settings.model, its.composition, plan)

    stages = {"pipeline_parallel_size": 3}
    grids = (
        {}, {"tensor_parallel_size": 2}, {"tensor_parallel_size": 4},
        stages | {"pipeline_layers": [1, 1, 2]}, stages | {"pipeline_layers": [1, 2, 1]},
        stages | {"pipeline_layers": [1, 1, 2], "tensor_parallel_size": 2},
    )  # fmt: skip
    assert len({root_of(**options) for options in grids}) == len(grids)
    assert root_of(pipeline_parallel_size=1) == root_of()


def test_random_weights_of_another_seed_are_another_model(folder):
    one, other = (root(folder, load_format="dummy", dummy_seed=seed) for seed in (1, 2))
    assert one != other


def test_weights_that_were_written_anew_are_another_model(folder):
    before = root(folder)
    weights = next(folder.glob("*.safetensors"))
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    assert root(folder) != before


def test_another_config_is_another_model(folder):
    before = root(folder)
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert root(folder) != before


def test_another_version_of_a_part_is_another_root(folder):
    settings = Settings.from_options({"model": str(folder)})
    composition = compose_engine(settings, load_plugins(settings.plugins)).composition
    (backend,) = composition.attention_backends
    source = replace(backend.entry.source, version="9.9")
    newer = replace(backend, entry=replace(backend.entry, source=source))
    plan = KVPlan(2, ())
    assert cache_root(settings.model, composition, plan) != cache_root(
        settings.model, replace(composition, attention_backends=(newer,)), plan
    )
