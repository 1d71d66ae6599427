"""Attention by pairs of bfloat16: against its definition, and against its own simulation."""

from dataclasses import dataclass, replace

import pytest
import torch

from quire.interfaces.attention import AttentionLayerParams
from quire.machine.instruction_sets import INSTRUCTION_SETS
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.attention.attention_truth import first_seen
from quire.testing.kv_backend.pool_sizes import Padding
from quire_attention_backends.cpu import cpu_library
from quire_attention_backends.cpu.cpu_attention import CpuBackend
from quire_attention_backends.cpu.cpu_library import KINDS, PAIRS, multiplies_pairs
from quire_attention_backends.shared.score_factors import LOG2_E, score_factors

HAS_PAIRS = multiplies_pairs()
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="this processor has no avx512_bf16")
ROUNDED = 2e-2  # largest error, of queries and weights that are rounded to 8 bits
RARELY = 2**-7  # largest difference where a weight is between two numbers of bfloat16


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSizes(SceneSizes):
    """A scene with a cache of bfloat16, whose backend may round factors to it."""

    kv_dtype: str = "bfloat16"

    @property
    def shape(self):
        """Shape that the backend is built for."""
        return replace(SceneSizes.shape.fget(self), product_dtype="bfloat16")


class SimulatedScene(AttentionScene):
    """Its reference rounds what the kernel rounds, and sums in float64."""

    def reference(self, rows, params):
        """Return simulated attention."""
        return simulated_attention(*rows, params)


def simulated_attention(q, k, v, layer: AttentionLayerParams):
    """Return attention with q and the weights in bfloat16, relative to a whole power of two."""
    score_factor, cap = score_factors(layer, 1.0)
    q = (q.float() * torch.tensor(score_factor)).bfloat16().double()
    out, group = torch.empty_like(q), q.shape[1] // k.shape[1]
    for row in range(len(q)):
        position = len(k) - len(q) + row
        seen = slice(first_seen(position, layer), position + 1)
        for head in range(q.shape[1]):
            scores = k[seen, head // group] @ q[row, head]
            if cap:
                scores = cap * scores.tanh()
            if layer.alibi_slopes is not None:
                distances = torch.arange(seen.start, seen.stop).double() - position
                scores = scores + layer.alibi_slopes[head].double() * LOG2_E * distances
            most = scores.max().ceil()
            weights = (scores - most).exp2().float().bfloat16().double()
            total = weights.sum()
            if layer.sinks is not None:
                total = total + (layer.sinks[head].double() * LOG2_E - most).exp2()
            out[row, head] = weights @ v[seen, head // group] / total
    return out


def on_threads(count, sizes, scene_class=AttentionScene):
    """Return a scene whose backend uses `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return scene_class(CpuBackend, sizes)
    finally:
        torch.set_num_threads(before)


def check_rounded(scene, plan, padding=None):
    for output, expected in scene.step(plan, padding):
        torch.testing.assert_close(output.double(), expected, atol=ROUNDED, rtol=ROUNDED)


SIZES = [
    {"head_dim": 128, "num_heads": 4, "num_kv_heads": 2},
    {"head_dim": 64, "num_heads": 16, "num_kv_heads": 1},
    {"head_dim": 80, "num_heads": 5, "num_kv_heads": 1, "block_size": 32},
    {"head_dim": 16, "num_heads": 6, "num_kv_heads": 3, "block_size": 2},
    {"head_dim": 96, "num_heads": 9, "num_kv_heads": 9, "block_size": 128},
    {"head_dim": 34, "num_heads": 3, "num_kv_heads": 1, "block_size": 4},
]
FEATURES = [
    {},
    {"window": 77},
    {"chunk": 90},
    {"window": 200, "chunk": 151, "soft_cap": 3.0},
    {"soft_cap": 30.0, "has_sinks": True},
    {"has_alibi": True},
]


@needs_pairs
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pairs_are_near_attention_by_its_definition(sizes):
    scene = on_threads(2, PairSizes(**sizes))
    long, short, other = scene.add(300), scene.add(30), scene.add(9)
    check_rounded(scene, [(long, 271), (short, 3)], Padding(1, 2))
    check_rounded(scene, [(other, 1), (long, 1), (short, 20)])
    check_rounded(scene, [(long, 2), (short, 1), (other, 5)])


@needs_pairs
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_pairs_equal_their_simulation(features):
    scene = on_threads(3, PairSizes(num_heads=4, num_kv_heads=1, **features), SimulatedScene)
    prompt, decoding = scene.add(330), scene.add(300)
    for plan in ([(decoding, 290)], [(prompt, 151), (decoding, 1)], [(decoding, 3), (prompt, 1)]):
        for output, expected in scene.step(plan):
            difference = (output.double() - expected).abs()
            assert difference.max() < RARELY
            assert difference.quantile(0.9) < 1e-5
            assert difference.median() < 1e-6


@needs_pairs
@pytest.mark.parametrize("num_new", [1, 40])
def test_weights_are_rounded_alike_wherever_a_context_is_cut(num_new):
    """Relative to the largest score so far they would be rounded otherwise behind each cut."""
    sizes = PairSizes(num_heads=2, num_kv_heads=1)
    outputs = []
    for threads in (1, 5):
        scene = on_threads(threads, sizes)
        scene.add(1900)
        for _ in range(3):
            scene.outputs([(0, 600)])
        outputs += scene.outputs([(0, num_new)])
    torch.testing.assert_close(*outputs, atol=1e-6, rtol=1e-5)
    assert not torch.equal(*outputs), "nothing was merged"


@needs_pairs
@pytest.mark.parametrize("num_new", [1, 20])
def test_nan_is_not_hidden(num_new):
    scene = on_threads(3, PairSizes())
    long, other = scene.add(900), scene.add(900)
    for number in (long, other):
        scene.outputs([(number, 600)])
    scene.requests[long].rows[0][600:] = torch.nan
    broken, whole = scene.outputs([(long, num_new), (other, num_new)])
    assert broken.isnan().all()
    assert whole.isfinite().all()


@needs_pairs
def test_blocks_outside_of_a_window_may_hold_anything():
    """A pair at the first visible key, an odd one, must not read the key before it."""
    scene = on_threads(1, PairSizes(window=31, block_size=16))
    request = scene.add(120)
    scene.outputs([(request, 62)])
    scene.free_unseen_blocks(request, is_reused=True)
    for num_new in (1, 1, 20):
        check_rounded(scene, [(request, num_new)])
        scene.free_unseen_blocks(request, is_reused=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PAIRS),
        ({"product_dtype": "float32"}, "bfloat16"),
        ({"product_dtype": None}, "bfloat16"),
        ({"kv_dtype": "float32"}, "float32"),
        ({"head_dim": 33}, "bfloat16"),
        ({"block_size": 1}, "bfloat16"),
    ],
)
def test_only_the_compute_dtype_bfloat16_multiplies_pairs(changes, expected):
    shape = replace(PairSizes().shape, **changes)
    kind = KINDS[CpuBackend(shape)._heads.kind]
    assert kind == (expected if HAS_PAIRS or expected != PAIRS else "bfloat16")


@pytest.mark.parametrize("flags", [frozenset(), frozenset({"avx512_bf16"})], ids=str)
@pytest.mark.parametrize("chosen", ["avx2", "neon", "no set"])
def test_other_processors_multiply_no_pairs(monkeypatch, flags, chosen):
    known = {each.name: each for each in INSTRUCTION_SETS}
    monkeypatch.setattr(cpu_library, "here", lambda: known.get(chosen, chosen))
    monkeypatch.setattr(cpu_library, "cpu_flags", lambda: flags)
    assert not multiplies_pairs()
    monkeypatch.setattr(cpu_library, "here", lambda: known["avx512"])
    assert multiplies_pairs() == bool(flags)
