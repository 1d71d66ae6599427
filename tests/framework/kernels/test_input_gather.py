"""The gathered inputs of a step are those that the host would build; padding is harmless."""

import pytest
from dry_launch import compiled_in_child
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_device import DEVICE

from quire.interfaces.sampling import RequestField
from quire.messages import NewBlocks, ScheduledRequest, SlotAssignment, TokenPatch
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.batch.slots import SlotTables
from quire.worker.batch.step_inputs import StepInputs, build_inputs

MAX_SEQS, MAX_LEN, MAX_TOKENS = 6, 640, 700
BLOCK_SIZES = {0: 16, 1: 4}  # by KV group
BACKEND_GROUPS = (0, 1, 1)  # the second group has heads of two shapes
FIELDS = [RequestField("temperature", float, 1.0), RequestField("is_odd", bool, False)]


class Scene:
    """The same requests in tables of the host's way and of the device's."""

    def __init__(self, backend_groups: tuple[int, ...] = BACKEND_GROUPS) -> None:
        widths = [-(-MAX_LEN // size) for size in BLOCK_SIZES.values()]
        sizes = [BLOCK_SIZES[group] for group in backend_groups]
        self.by_host, self.by_device = (
            SlotTables(
                MAX_SEQS, MAX_LEN, widths, FIELDS, DEVICE, backend_groups, has_device_blocks=here
            )
            for here in (False, True)
        )
        self.inputs = DeviceInputs(self.by_device, sizes, MAX_TOKENS)
        self.sizes = sizes

    def assign(self, slot: int, length: int, computed: int) -> None:
        message = SlotAssignment(
            slot=slot,
            token_ids=[1000 * slot + index for index in range(length)],
            num_computed_tokens=computed,
            block_ids=[
                [200 * slot + index + 1 for index in range(-(-length // size))]
                for size in BLOCK_SIZES.values()
            ],
            num_prompt_tokens=length,
            fields={},
            seed=slot,
            child=0,
        )
        self.change(lambda tables: tables.assign(message))

    def change(self, what) -> None:
        for tables in (self.by_host, self.by_device):
            what(tables)

    def push(self) -> None:
        self.change(SlotTables.push)

    def built(self, requests: list[ScheduledRequest]) -> tuple[StepInputs, StepInputs]:
        self.push()
        expected = build_inputs(requests, self.by_host, self.sizes)
        return expected, self.inputs.build(requests)


def check_equal(expected: StepInputs, found: StepInputs) -> None:
    assert found.input_ids.tolist() == expected.input_ids.tolist()
    assert found.positions.tolist() == expected.positions.tolist()
    for name in ("slots", "query_lens", "sampled"):
        assert getattr(found, name) == getattr(expected, name)
    assert (found.last_rows is None) == (expected.last_rows is None)
    if expected.last_rows is not None:
        assert found.last_rows.tolist() == expected.last_rows.tolist()
    for ours, theirs in zip(found.layouts, expected.layouts, strict=True):
        for name in ("query_start", "seq_lens", "slot_mapping"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype
        assert ours.block_table.shape == theirs.block_table.shape
        for name in ("num_tokens", "max_query_len", "query_lens_host", "seq_lens_host"):
            assert getattr(ours, name) == getattr(theirs, name)


def check_tables(expected: StepInputs, found: StepInputs, backend_groups) -> None:
    """Only the blocks of a request are compared: behind them anything may stand."""
    layouts = zip(found.layouts, expected.layouts, backend_groups, strict=True)
    for ours, theirs, group in layouts:
        for row, length in enumerate(expected.layouts[0].seq_lens_host):
            used = -(-length // BLOCK_SIZES[group])
            mine, wanted = ours.block_table[row, :used], theirs.block_table[row, :used]
            assert mine.tolist() == wanted.tolist()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 100), st.data()), min_size=1, max_size=4), st.data())
def test_any_step_is_gathered_as_the_host_would_build_it(rows, data):
    scene = Scene()
    slots = data.draw(st.permutations(range(MAX_SEQS)))
    requests = []
    for slot, (length, draw) in zip(slots, rows, strict=False):
        computed = draw.draw(st.integers(0, length - 1))
        count = draw.draw(st.sampled_from([1, length - computed]))
        scene.assign(slot, length, computed)
        requests.append(ScheduledRequest(slot, count, int(computed + count == length)))
    expected, found = scene.built(requests)
    check_equal(expected, found)
    check_tables(expected, found, BACKEND_GROUPS)


def test_a_long_prompt_takes_more_than_one_turn_of_a_program():
    scene = Scene()
    scene.assign(3, 620, 7)
    scene.assign(1, 9, 8)
    expected, found = scene.built([ScheduledRequest(3, 613, 1), ScheduledRequest(1, 1, 1)])
    check_equal(expected, found)
    check_tables(expected, found, BACKEND_GROUPS)


def test_a_group_without_layers_here_is_left_out():
    scene = Scene((1,))
    scene.assign(0, 30, 4)
    expected, found = scene.built([ScheduledRequest(0, 26, 1)])
    check_equal(expected, found)
    check_tables(expected, found, (1,))


def test_a_model_without_attention_gets_tokens_and_positions():
    scene = Scene(())
    scene.assign(2, 12, 3)
    expected, found = scene.built([ScheduledRequest(2, 9, 1)])
    assert found.layouts == []
    assert found.input_ids.tolist() == expected.input_ids.tolist() == list(range(2003, 2012))
    assert found.positions.tolist() == list(range(3, 12))


def test_differences_reach_the_device():
    scene = Scene()
    scene.assign(0, 16, 15)
    scene.built([ScheduledRequest(0, 1, 1)])

    def grow(tables: SlotTables) -> None:
        tables.patch_tokens(TokenPatch(0, 16, [77]))
        tables.add_blocks(NewBlocks(0, 0, [901]))
        tables.add_blocks(NewBlocks(0, 1, [902]))
        tables.num_computed[0] = 16

    scene.change(grow)
    expected, found = scene.built([ScheduledRequest(0, 1, 1)])
    check_equal(expected, found)
    check_tables(expected, found, BACKEND_GROUPS)
    assert found.input_ids.tolist() == [77]
    assert found.layouts[0].slot_mapping.tolist() == [901 * 16]


def test_padding_of_a_captured_step_reads_nothing_and_goes_to_the_null_block():
    scene = Scene()
    for slot in range(5):  # what is there must not be seen behind the next step
        scene.assign(slot, 33, 32)
    scene.push()
    scene.inputs.send_decode([4, 2, 0, 1, 3])
    scene.inputs.gather_decode(6)
    scene.inputs.send_decode([2, 4])
    found = scene.inputs.gather_decode(4)
    assert found.input_ids.tolist() == [2032, 4032, 0, 0]
    assert found.positions.tolist() == [32, 32, 0, 0]
    assert scene.inputs.slots[:4].tolist() == [2, 4, MAX_SEQS, MAX_SEQS]
    assert scene.inputs.sampled_positions[:4].tolist() == [33, 33, 0, 0]
    for layout, group in zip(found.layouts, BACKEND_GROUPS, strict=True):
        assert layout.query_start.tolist() == [0, 1, 2, 2, 2]
        assert layout.seq_lens.tolist() == [33, 33, 0, 0]
        size = BLOCK_SIZES[group]
        kv_slots = [(200 * slot + 32 // size + 1) * size for slot in (2, 4)]
        assert layout.slot_mapping.tolist() == [*kv_slots, 0, 0]
        assert (layout.num_tokens, layout.max_query_len) == (4, 1)
        assert layout.query_lens_host == layout.seq_lens_host == []


def test_a_captured_step_finds_its_inputs_where_the_last_one_did():
    scene = Scene()
    scene.assign(0, 5, 4)
    scene.push()
    scene.inputs.send_decode([0])
    first, second = scene.inputs.gather_decode(2), scene.inputs.gather_decode(2)
    assert first.input_ids.data_ptr() == second.input_ids.data_ptr()
    for ours, theirs in zip(first.layouts, second.layouts, strict=True):
        for name in ("query_start", "seq_lens", "block_table", "slot_mapping"):
            assert getattr(ours, name).data_ptr() == getattr(theirs, name).data_ptr()


def test_each_token_knows_its_requests_adapter():
    scene = Scene()
    scene.assign(0, 5, 2)
    scene.assign(4, 8, 7)
    scene.by_device.adapter_index[4] = 3
    scene.built([ScheduledRequest(0, 3, 1), ScheduledRequest(4, 1, 1)])
    batch = scene.inputs.adapter_batch(4)
    assert (batch.index.tolist(), batch.rows) == ([-1, -1, -1, 3], None)
    scene.inputs.send_decode([4])
    scene.inputs.gather_decode(3)
    assert scene.inputs.adapter_batch(3).index.tolist() == [3, -1, -1]


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_every_gather_compiles_for_a_gpu(capability):
    kernels = compiled_in_child("step_launches:every_gather", capability)
    assert {kernel.name for kernel in kernels} == {"_gather_kernel"}
    assert len(kernels) >= 2, "with KV groups and without"
    for kernel in kernels:
        assert kernel.fits()
        assert kernel.local_bytes == 0, kernel.what
