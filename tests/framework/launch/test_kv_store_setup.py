"""Invalid options of a KV store are refused before the weights are read."""

import pytest

from quire import LLM
from quire.config import Settings
from quire.errors import CheckpointError, SettingsError
from quire.launch.composing import Composed, compose_engine
from quire.launch.kv_store_setup import check_store_options, load_store, store_plan
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.testing.kv_store.kv_store_scene import one_group_plan, three_groups_plan


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), "LlamaForCausalLM")


def composed(checkpoint, **options) -> Composed:
    settings = Settings.from_options({"model": str(checkpoint.folder)} | options)
    return compose_engine(settings, load_plugins(settings.plugins))


def test_without_a_store_there_is_nothing_to_check(checkpoint):
    its = composed(checkpoint)
    assert load_store(its) is None
    check_store_options(its, one_group_plan())


def test_options_are_checked_with_a_plan_and_without(checkpoint):
    its = composed(checkpoint, kv_store="host_memory", kv_store_options={"max_bytes": 255})
    check_store_options(its)
    with pytest.raises(SettingsError, match="max_bytes is 255"):
        check_store_options(its, one_group_plan())


def test_a_store_counts_the_blocks_of_the_stage_where_they_are_longest():
    short, long = one_group_plan(), three_groups_plan()
    assert store_plan([short, long]) is store_plan([long, short]) is long


@pytest.mark.parametrize("option", ["max_bytes=abc", "foo=1"])
def test_a_start_fails_before_the_weights_are_read(tmp_path, option):
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    for weights in folder.glob("*.safetensors"):
        weights.write_bytes(b"no weights")
    with pytest.raises(CheckpointError):
        LLM(str(folder), kv_store="host_memory")
    with pytest.raises(SettingsError, match="host_memory"):
        LLM(str(folder), kv_store="host_memory", kv_store_options=[option])
