"""Captured steps: the kit rejects backends that compute on the host or wait for the device."""

from dataclasses import replace

import pytest
import torch
from device_attention import DEVICE_ATTENTION, DeviceAttention

from quire.testing.attention.attention_contract import AttentionBackendContract
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.captured_step import CapturedAttentionStep

SIZES = SceneSizes(head_dim=32)
SINGLE = "test_a_captured_step_of_single_tokens_is_replayed"
WHOLE = "test_a_captured_step_of_any_tokens_is_replayed"


class TestDeviceAttention(AttentionBackendContract):
    backend_class = DeviceAttention
    capabilities = DEVICE_ATTENTION


def contract(broken):
    class Contract(AttentionBackendContract):
        backend_class = broken
        capabilities = DEVICE_ATTENTION

    return Contract()


class ReadsTheHostsLists(DeviceAttention):
    def prepare(self, step):
        device = step.seq_lens.device
        lens = torch.tensor(step.seq_lens_host, dtype=torch.int32, device=device)
        rest = step.seq_lens.new_zeros(len(step.seq_lens) - len(lens))
        return super().prepare(replace(step, seq_lens=torch.cat((lens, rest))))


class ReadsTheDevice(DeviceAttention):
    def prepare(self, step):
        blocks = -(-step.seq_lens.max().item() // self.shape.block_size)
        return super().prepare(replace(step, block_table=step.block_table[:, :blocks]))


class ListsTheDevice(DeviceAttention):
    def prepare(self, step):
        blocks = -(-max(step.seq_lens.tolist()) // self.shape.block_size)
        return super().prepare(replace(step, block_table=step.block_table[:, :blocks]))


class CopiesToNumpy(DeviceAttention):
    def prepare(self, step):
        assert step.seq_lens.cpu().numpy().max() > 0
        return super().prepare(step)


class PicksByAMask(DeviceAttention):
    def prepare(self, step):
        assert len(step.seq_lens[step.seq_lens > 0])
        return super().prepare(step)


class RepeatsByData(DeviceAttention):
    def prepare(self, step):
        lens = step.query_start.diff()
        assert len(torch.arange(len(lens), device=lens.device).repeat_interleave(lens))
        return super().prepare(step)


class KeepsTheFirstStep(DeviceAttention):
    """Behaves like a buffer that is filled at capture and never again."""

    def __init__(self, shape):
        super().__init__(shape)
        self.first = None

    def prepare(self, step):
        if step.seq_lens_host:
            return super().prepare(step)
        self.first = self.first or replace(step, seq_lens=step.seq_lens.clone())
        return super().prepare(self.first)


class CountsTokensAsRequests(DeviceAttention):
    """Right for one token per request only."""

    def prepare(self, step):
        if not step.seq_lens_host and step.max_query_len > 1:
            start = torch.arange(len(step.query_start), device=step.query_start.device)
            step = replace(step, query_start=start.int())
        return super().prepare(step)


@pytest.mark.parametrize("test", [SINGLE, WHOLE])
@pytest.mark.parametrize("sizes", [{}, {"window": 33}, {"rotary": "normed"}], ids=str)
def test_a_backend_that_never_waits_for_the_device_passes(test, sizes):
    getattr(contract(DeviceAttention), test)(replace(SIZES, **sizes))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU to capture steps on")
@pytest.mark.parametrize("test", [SINGLE, WHOLE])
def test_a_real_graph_is_replayed(test):
    getattr(contract(DeviceAttention), test)(replace(SIZES, device="cuda"))


@pytest.mark.parametrize("broken", [ReadsTheHostsLists, KeepsTheFirstStep])
@pytest.mark.parametrize("test", [SINGLE, WHOLE])
def test_outputs_of_another_step_are_noticed(broken, test):
    with pytest.raises(AssertionError, match=r"off by|nan"):
        getattr(contract(broken), test)(SIZES)


@pytest.mark.parametrize(
    "broken", [ReadsTheDevice, ListsTheDevice, CopiesToNumpy, PicksByAMask, RepeatsByData]
)
def test_a_wait_for_the_device_is_noticed(broken):
    with pytest.raises(AssertionError, match=r"must not (wait|copy)"):
        contract(broken).test_a_captured_step_of_single_tokens_is_replayed(SIZES)


def test_a_step_of_any_tokens_is_more_than_one_of_single_tokens():
    broken = contract(CountsTokensAsRequests)
    broken.test_a_captured_step_of_single_tokens_is_replayed(SIZES)
    with pytest.raises(AssertionError, match=r"off by|nan"):
        broken.test_a_captured_step_of_any_tokens_is_replayed(SIZES)


def test_the_buffers_of_a_captured_step_stay_where_they_are():
    scene = AttentionScene(DeviceAttention, SIZES)
    number = scene.add(9)
    step = CapturedAttentionStep(scene, 4, 4)
    before = step._layout.block_table.data_ptr()
    for _ in range(2):
        step.step([(number, 1)])
    assert step._layout.block_table.data_ptr() == before
    assert step._layout.seq_lens.tolist() == [2, 0, 0, 0]
    assert step._layout.query_start.tolist() == [0, 1, 1, 1, 1]
    assert step._layout.max_query_len == 1
    assert CapturedAttentionStep(scene, 4, 9)._layout.max_query_len == 9
