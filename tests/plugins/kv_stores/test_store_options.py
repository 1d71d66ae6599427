"""Options of the host-memory tier: sizes with units, and errors for anything else."""

import pytest

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import CrossGroupBlock, cross_group_block_bytes
from quire.messages import TransferReport
from quire.testing.kv_store.kv_store_scene import chain, one_group_plan, three_groups_plan
from quire_kv_stores.host_memory import HostMemoryScheduler
from quire_kv_stores.host_memory_worker import HostMemory
from quire_kv_stores.store_options import HostMemoryOptions, read_options


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1048576", 2**20),
        ("4GiB", 4 * 2**30),
        ("3 MB", 3_000_000),
        ("500B", 500),
        (" 1kB ", 1000),
        ("2TiB", 2**41),
    ],
)
def test_a_size_is_a_number_and_perhaps_a_unit(text, num_bytes):
    assert read_options({"max_bytes": text}).max_bytes == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1", "0", "1.5GiB", "4 gb", "1e9", "4GiBs", "9" * 19, "2000TiB", "٣", "1\n2"],
)
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(SettingsError, match=r"max_bytes must be .*got"):
        read_options({"max_bytes": text})


def test_the_default_is_four_gibibytes():
    assert read_options({}).max_bytes == 4 * 2**30
    assert read_options({}).step_bytes == 64 * 2**20


def test_an_unknown_option_is_refused_with_those_that_are_known():
    with pytest.raises(SettingsError, match=r"'max_byte' \(known: max_bytes, step_bytes\)"):
        read_options({"max_byte": "1"})


@pytest.mark.parametrize("side", [HostMemoryScheduler, HostMemory])
def test_a_block_that_does_not_fit_is_refused_with_the_sizes(side):
    plan = one_group_plan()
    with pytest.raises(SettingsError, match=r"max_bytes is 255, .* 256 bytes"):
        side({"max_bytes": "255"}, plan)
    side({"max_bytes": "256"}, plan)


def test_options_are_checked_before_there_is_a_store():
    plan = one_group_plan()
    with pytest.raises(SettingsError, match="no option 'max_byte'"):
        HostMemoryScheduler.check_options({"max_byte": "1"})
    HostMemoryScheduler.check_options({"max_bytes": "255"})
    with pytest.raises(SettingsError, match="max_bytes is 255"):
        HostMemoryScheduler.check_options({"max_bytes": "255"}, plan)
    HostMemoryScheduler.check_options({"max_bytes": "256"}, plan)


def test_the_largest_size_is_that_of_the_largest_machine():
    assert read_options({"max_bytes": "1024TiB"}).max_bytes == 2**50
    with pytest.raises(SettingsError, match="step_bytes must be from 1 to"):
        read_options({"step_bytes": "0"})


def test_a_cross_group_block_has_a_page_of_every_layer_and_no_padding():
    assert cross_group_block_bytes(one_group_plan()) == 96 + 160
    assert cross_group_block_bytes(three_groups_plan()) == (2 + 2 + 1) * 128


def test_only_whole_cross_group_blocks_count():
    assert HostMemoryOptions(max_bytes=2559).num_slots(one_group_plan()) == 9
    assert HostMemoryOptions(max_bytes=2560).num_slots(one_group_plan()) == 10


def test_a_model_that_keeps_nothing_stores_nothing():
    plan, prompt = KVPlan(1, ()), chain("prompt", 3)
    scheduler, worker = HostMemoryScheduler({}, plan), HostMemory({}, plan)
    assert scheduler.start_save(1, [CrossGroupBlock(name, ()) for name in prompt]) == 0
    assert scheduler.lookup("request", prompt).num_blocks == 0
    worker.attach([])
    worker.begin_step(scheduler.plan_step())
    assert worker.report() == TransferReport()
