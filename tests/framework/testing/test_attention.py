"""The conformance kit notices backends that are wrong, each by the test that is meant for it."""

from dataclasses import replace

import pytest
import torch
from device_attention import DeviceAttention

from quire.interfaces.attention import AttentionBackend, AttentionCapabilities
from quire.testing.attention import AttentionBackendContract
from quire.testing.attention_scene import AttentionScene
from quire.testing.attention_sizes import Padding, SceneSizes
from quire_attention_backends.torch_sdpa import TorchSDPABackend

TYPES = frozenset({"float32"})
CAPABILITIES = AttentionCapabilities(
    devices=frozenset({"cpu"}),
    dtypes=TYPES,
    kv_dtypes=TYPES | {"float8_e4m3fn", "int8"},
    head_dims=frozenset({32}),
    block_sizes=frozenset({16}),
    sliding_window=True,
    attention_chunk=True,
    logit_soft_cap=True,
    padded_pages=True,
    sinks=True,
    batch_invariant=True,
)
SIZES = SceneSizes(head_dim=32)


def contract(broken):
    class Contract(AttentionBackendContract):
        backend_class = broken
        capabilities = CAPABILITIES

    return Contract()


class SwappedHeads(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k.flip(1), v.flip(1), kv_cache, metadata, layer)


class NoScale(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, scale=1.0))


class NoWindow(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sliding_window=None))


class WindowOneWider(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        window = layer.sliding_window
        layer = layer if window is None else replace(layer, sliding_window=window + 1)
        return super().forward(q, k, v, kv_cache, metadata, layer)


class NoChunks(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, attention_chunk=None))


class ChunkAsWindow(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        layer = replace(layer, attention_chunk=None, sliding_window=layer.attention_chunk)
        return super().forward(q, k, v, kv_cache, metadata, layer)


class WritesBehindThePage(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        page = kv_cache[0].numel()
        kv_cache.as_strided((len(kv_cache),), kv_cache.stride()[:1], page).zero_()
        return super().forward(q, k, v, kv_cache, metadata, layer)


class ForgetsNothing(TorchSDPABackend):
    def forget_context(self):
        pass


class NoSoftCap(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, logit_soft_cap=None))


class NoSinks(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sinks=None))


class OneSinkForAll(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        sinks = None if layer.sinks is None else layer.sinks[:1].expand_as(layer.sinks)
        return super().forward(q, k, v, kv_cache, metadata, replace(layer, sinks=sinks))


class NoScales(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        plain = replace(layer, k_scale=1.0, v_scale=1.0)
        return super().forward(q, k, v, kv_cache, metadata, plain)


class TruncatesToInt8(TorchSDPABackend):
    """Rounds towards zero where the nearest is asked for."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        if self.shape.kv_dtype == "int8":
            k, v = self._cut(k), self._cut(v)
        return super().forward(q, k, v, kv_cache, metadata, layer)

    def _cut(self, x):
        scales = x.abs().amax(-1, keepdim=True) / 127
        return (x / scales * (1 + 1e-6)).trunc() * scales


class TurnsTwiceAsFar(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        doubled = replace(rotary, positions=2 * rotary.positions)
        return super().forward_rotary(qkv, doubled, kv_cache, metadata, layer)


class LeavesTheNormOut(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        bare = replace(rotary, norm_weight=None)
        return super().forward_rotary(qkv, bare, kv_cache, metadata, layer)


class NormsKeysAsQueries(DeviceAttention):
    def forward_rotary(self, qkv, rotary, kv_cache, metadata, layer):
        weight = rotary.norm_weight
        shifted = None if weight is None else weight.roll(1, 0)
        odd = replace(rotary, norm_weight=shifted)
        return super().forward_rotary(qkv, odd, kv_cache, metadata, layer)


class ReadsOneTooFew(TorchSDPABackend):
    def prepare(self, step):
        lens = zip(step.query_lens_host, step.seq_lens_host, strict=True)
        shorter = [max(num_new, length - 1) for num_new, length in lens]
        return super().prepare(replace(step, seq_lens_host=shorter))


class ReadsOneTooMany(TorchSDPABackend):
    def prepare(self, step):
        table = torch.cat((step.block_table, torch.zeros_like(step.block_table[:, :1])), 1)
        longer = [n + 1 for n in step.seq_lens_host]
        return super().prepare(replace(step, seq_lens_host=longer, block_table=table))


class WritesToTheNeighbour(TorchSDPABackend):
    def prepare(self, step):
        return super().prepare(
            replace(step, slot_mapping=step.slot_mapping + self.shape.block_size)
        )


class PadsIntoTheLastBlock(TorchSDPABackend):
    def prepare(self, step):
        last = int(step.block_table.max()) * self.shape.block_size
        slots = torch.where(step.slot_mapping == 0, last, step.slot_mapping)
        return super().prepare(replace(step, slot_mapping=slots))


class ForgetsTheContext(TorchSDPABackend):
    def prepare(self, step):
        return super().prepare(replace(step, seq_lens_host=step.query_lens_host))


class SidesOutermost(TorchSDPABackend):
    @classmethod
    def kv_view(cls, raw, spec, num_blocks):
        view = super().kv_view(raw, spec, num_blocks)
        return view.view(2, num_blocks, *view.shape[2:]).transpose(0, 1)


class KeepsTheFirstLayersCache(TorchSDPABackend):
    def __init__(self, shape):
        super().__init__(shape)
        self.caches = []

    def forward(self, q, k, v, kv_cache, metadata, layer):
        self.caches.append(kv_cache)
        return super().forward(q, k, v, self.caches[0], metadata, layer)


class HidesWhatItReads(TorchSDPABackend):
    """Reads whole blocks and trusts the mask; right, unless what is hidden is not a number."""

    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        step, start = metadata.step, 0
        for request, num_new in enumerate(step.query_lens_host):
            blocks = kv_cache[step.block_table[request].long(), 1]  # [blocks, K, S, D]
            nothing = (blocks * 0).sum()
            out[start : start + num_new] += nothing
            start += num_new
        return out


class NoiseByBatch(TorchSDPABackend):
    def forward(self, q, k, v, kv_cache, metadata, layer):
        out = super().forward(q, k, v, kv_cache, metadata, layer)
        return out * (1 + 1e-6 * (len(q) - 1))


def test_a_test_class_may_have_a_tolerance_of_its_own():
    class Exact(type(contract(TorchSDPABackend))):
        def tolerance(self, sizes):
            return 0.0

    with pytest.raises(AssertionError, match=r"allowed are 0e\+00"):
        Exact().test_very_uneven_contexts_share_a_step()


def test_a_right_backend_passes():
    right = contract(TorchSDPABackend)
    right.test_the_declared_sizes_work(SIZES)
    right.test_prompts_and_single_tokens_share_a_step()
    right.test_layers_share_the_metadata_of_a_step()


@pytest.mark.parametrize(
    "broken",
    [
        SwappedHeads,
        NoScale,
        ReadsOneTooFew,
        ReadsOneTooMany,
        WritesToTheNeighbour,
        HidesWhatItReads,
    ],
)
def test_wrong_answers_are_noticed_at_the_first_sizes(broken):
    with pytest.raises(AssertionError, match=r"off by|nan"):
        contract(broken).test_the_declared_sizes_work(SIZES)


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ForgetsTheContext, "test_a_shared_prefix_is_read_from_the_other_requests_blocks"),
        (ForgetsTheContext, "test_prompts_and_single_tokens_share_a_step"),
        (SidesOutermost, "test_a_block_is_contiguous_and_outermost"),
        (WritesToTheNeighbour, "test_only_the_slots_of_a_step_are_written"),
        (ForgetsNothing, "test_a_write_from_outside_is_seen_after_forget_context"),
        (KeepsTheFirstLayersCache, "test_layers_share_the_metadata_of_a_step"),
    ],
)
def test_broken_promises_are_noticed(broken, test):
    with pytest.raises(AssertionError):
        getattr(contract(broken), test)()


def test_padding_in_somebodys_block_is_noticed():
    with pytest.raises(AssertionError):
        contract(PadsIntoTheLastBlock).test_padding_writes_to_the_null_block_only(Padding(0, 3))


@pytest.mark.parametrize("broken", [NoWindow, WindowOneWider])
def test_a_wrong_window_is_noticed(broken):
    with pytest.raises(AssertionError, match="off by"):
        contract(broken).test_windows_hide_what_lies_before(5)


@pytest.mark.parametrize("broken", [NoChunks, ChunkAsWindow])
def test_wrong_chunks_are_noticed(broken):
    with pytest.raises(AssertionError, match="off by"):
        contract(broken).test_chunks_hide_what_lies_before(5)


@pytest.mark.parametrize("is_taken", [False, True])
@pytest.mark.parametrize("reach", [{}, {"window": 20}, {"chunk": 40}])
def test_reading_what_no_query_sees_is_noticed(reach, is_taken):
    sizes = replace(SIZES, **reach)
    contract(TorchSDPABackend).test_what_no_query_sees_is_never_read(sizes, is_taken)
    with pytest.raises(AssertionError, match="nan"):
        contract(HidesWhatItReads).test_what_no_query_sees_is_never_read(sizes, is_taken)


def test_writing_between_pages_is_noticed():
    with pytest.raises(AssertionError, match="padding was written"):
        contract(WritesBehindThePage).test_pages_may_be_padded(2)


def test_noise_that_depends_on_the_batch_is_noticed():
    sizes = replace(SIZES, batch_invariant=True)
    with pytest.raises(AssertionError, match="a row differs"):
        contract(NoiseByBatch).test_batch_invariant_answers_are_bit_identical(sizes)


def test_a_missing_soft_cap_is_noticed():
    with pytest.raises(AssertionError, match="off by"):
        contract(NoSoftCap).test_scores_are_capped(2.0)


@pytest.mark.parametrize("broken", [NoSinks, OneSinkForAll])
def test_missing_sinks_are_noticed(broken):
    sizes = replace(SIZES, has_sinks=True)
    contract(TorchSDPABackend).test_sinks_take_their_share(sizes)
    with pytest.raises(AssertionError, match="off by"):
        contract(broken).test_sinks_take_their_share(sizes)


def test_missing_scales_are_noticed():
    contract(TorchSDPABackend).test_each_layer_has_its_own_scales("float8_e4m3fn")
    with pytest.raises(AssertionError, match="off by"):
        contract(NoScales).test_each_layer_has_its_own_scales("float8_e4m3fn")


@pytest.mark.parametrize(
    ("broken", "kv_dtype"), [(NoScales, "float8_e4m3fn"), (TruncatesToInt8, "int8")]
)
def test_other_numbers_in_the_cache_are_noticed(broken, kv_dtype):
    contract(TorchSDPABackend).test_the_declared_types_work(("float32", kv_dtype))
    with pytest.raises(AssertionError, match="off by"):
        contract(broken).test_the_declared_types_work(("float32", kv_dtype))


@pytest.mark.parametrize("broken", [TurnsTwiceAsFar, LeavesTheNormOut, NormsKeysAsQueries])
def test_heads_that_are_turned_otherwise_are_noticed(broken):
    sizes = replace(SIZES, rotary="normed")
    contract(DeviceAttention).test_heads_are_normed_and_turned_before_they_are_kept(sizes)
    with pytest.raises(AssertionError, match="off by"):
        contract(broken).test_heads_are_normed_and_turned_before_they_are_kept(sizes)


def test_a_prompt_in_chunks_needs_its_context():
    with pytest.raises(AssertionError, match="off by"):
        contract(ForgetsTheContext).test_a_prompt_in_chunks_equals_the_whole(7)


def test_the_scene_poisons_what_nobody_wrote():
    scene = AttentionScene(TorchSDPABackend, SIZES)
    assert scene.kv_cache.isnan().all()
    assert isinstance(scene.backend, AttentionBackend)


@pytest.mark.parametrize("kv_dtype", ["float8_e4m3fn", "int8"])
def test_what_nobody_wrote_is_poison_as_codes_too(kv_dtype):
    scene = AttentionScene(TorchSDPABackend, replace(SIZES, kv_dtype=kv_dtype))
    scene.add(3)
    layout = scene.layout([(0, 3)], Padding())
    longer = replace(layout, seq_lens_host=[4])
    metadata = scene.backend.prepare(longer)
    q, k, v = scene.inputs([(0, 3)])
    out = scene.backend.forward(q, k, v, scene.kv_cache, metadata, scene.sizes.params)
    assert out.isnan().any()
