"""One launch equals norm, rotation and KV writes one after the other in torch."""

from functools import cache

import pytest
import torch
from dry_launch import compiled_in_child
from kernel_device import DEVICE
from kv_pages import KV_DTYPES, numbers_at, pages_of, shape_of

from quire.interfaces.attention import AttentionLayerParams, RotaryStep
from quire.layers.attention.rope_parameters import RopeParameters
from quire.layers.attention.rotary import RotaryEmbedding, rotate
from quire.layers.context import LayerContext
from quire.layers.qk_norm import QKNorm
from quire.testing.attention.attention_truth import kv_round_trip
from quire_attention_backends.triton.kv_write import rotate_and_write, write_kv

NUM_TOKENS = 5
HEADS = ((6, 2), (4, 4), (5, 1))
LAYER = AttentionLayerParams(0.1, k_scale=0.3, v_scale=2.0)
# The interpreter truncates bfloat16 where a GPU rounds to the nearest.
ROUNDING = {"bfloat16": 2**-7} if DEVICE.type == "cpu" else {}


@cache
def slots_here():
    """Return the slots of the tokens; two are padding."""
    return torch.tensor([17, 18, 47, 80, 95, 0, 0], device=DEVICE)


def heads_of(num_heads, num_kv_heads, head_dim, dtype):
    shape = (len(slots_here()), num_heads + 2 * num_kv_heads, head_dim)
    qkv = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    qkv[NUM_TOKENS:] = torch.nan
    return qkv.to(dtype).to(DEVICE)


def rotary_step(num_heads, num_kv_heads, head_dim, dtype, has_norm, weight_offset=0.0):
    """Return a step's rotation, and what quire's own layers make of `[T, H + K, D]`."""
    context = LayerContext(dtype=dtype, device=DEVICE)
    rope = RopeParameters(theta=500.0)
    embedding = RotaryEmbedding(head_dim, 50, rope, context)
    norm = QKNorm(num_heads, num_kv_heads, head_dim, 1e-5, context, weight_offset=weight_offset)
    draw = torch.Generator().manual_seed(4)
    for part, scale in (("q_norm", 1.0), ("k_norm", 2.0)):
        norm.load_weight("weight", scale * torch.rand(head_dim, generator=draw), part)
    positions = torch.tensor([0, 1, 13, 49, 30, 0, 0], device=DEVICE)
    rotation = embedding(positions)
    weight = norm.weight if has_norm else None

    def by_layers(qk):
        return rotate(norm(qk) if has_norm else qk, rotation)

    return RotaryStep(rotation.table, positions, weight, norm.eps), by_layers


def check_kept(pages, k, v, kv_dtype, tolerance):
    found = numbers_at(pages, slots_here(), LAYER)[:, :NUM_TOKENS].double().cpu()
    expected = torch.stack(
        (kv_round_trip(k.cpu(), kv_dtype, 0.3), kv_round_trip(v.cpu(), kv_dtype, 2.0))
    )
    limit = max(tolerance, ROUNDING.get(kv_dtype, 0.0))
    torch.testing.assert_close(found, expected[:, :NUM_TOKENS], rtol=limit, atol=tolerance)


def shape_for(heads, head_dim, dtype, kv_dtype):
    return shape_of(kv_dtype, *heads, head_dim, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("heads", "head_dim", "padding"),
    [((6, 2), 32, 0), ((4, 4), 80, 3), ((5, 1), 96, 8), ((6, 2), 128, 1)],
)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_k_and_v_are_kept_by_the_definition(kv_dtype, heads, head_dim, padding):
    pages, raw = pages_of(shape_for(heads, head_dim, torch.float32, kv_dtype), padding)
    qkv = heads_of(*heads, head_dim, torch.float32)
    k, v = qkv[:, heads[0] : sum(heads)], qkv[:, sum(heads) :]  # views with strides
    write_kv(k, v, pages, slots_here(), LAYER)
    check_kept(pages, k, v, kv_dtype, 1e-6)
    is_written = raw.any(1).nonzero().flatten().tolist()
    assert is_written == sorted({slot // 16 for slot in slots_here().tolist()})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16", "float8_e4m3fn", "int8"])
def test_half_precision_is_kept_by_the_definition(dtype, kv_dtype):
    pages, _ = pages_of(shape_for((6, 2), 64, dtype, kv_dtype))
    qkv = heads_of(6, 2, 64, dtype)
    write_kv(qkv[:, 6:8], qkv[:, 8:], pages, slots_here(), LAYER)
    check_kept(pages, qkv[:, 6:8], qkv[:, 8:], kv_dtype, 1e-6)


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("head_dim", [32, 80, 128])
@pytest.mark.parametrize("heads", HEADS)
def test_heads_are_rotated_as_by_the_layers(heads, head_dim, has_norm):
    pages, _ = pages_of(shape_for(heads, head_dim, torch.float32, "float32"))
    rotary, by_layers = rotary_step(*heads, head_dim, torch.float32, has_norm)
    qkv = heads_of(*heads, head_dim, torch.float32)
    qk, v = by_layers(qkv[:, : sum(heads)]), qkv[:, sum(heads) :].clone()
    q = rotate_and_write(qkv, rotary, pages, slots_here(), LAYER, heads[0])
    torch.testing.assert_close(q[:NUM_TOKENS], qk[:NUM_TOKENS, : heads[0]], rtol=2e-6, atol=2e-6)
    check_kept(pages, qk[:, heads[0] :], v, "float32", 2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_every_type_is_rotated_in_float32_and_rounded_once(dtype, kv_dtype):
    heads = (6, 2)
    pages, _ = pages_of(shape_for(heads, 64, dtype, kv_dtype))
    rotary, _ = rotary_step(*heads, 64, dtype, has_norm=True)
    exact = RotaryStep(
        rotary.table.float(), rotary.positions, rotary.norm_weight.float(), rotary.norm_eps
    )
    qkv = heads_of(*heads, 64, dtype)
    wide, (wide_pages, _) = qkv.float(), pages_of(shape_for(heads, 64, torch.float32, "float32"))
    q = rotate_and_write(qkv, rotary, pages, slots_here(), LAYER, 6)
    wide_q = rotate_and_write(wide, exact, wide_pages, slots_here(), LAYER, 6)
    assert q.dtype == dtype
    limit = ROUNDING.get(str(dtype).removeprefix("torch."), 0.0)
    torch.testing.assert_close(q, wide_q.to(dtype), rtol=limit, atol=0, equal_nan=True)
    k, v = numbers_at(wide_pages, slots_here(), LAYER)
    check_kept(pages, k, v, kv_dtype, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_the_layers(dtype):
    pages, _ = pages_of(shape_for((6, 2), 64, dtype, str(dtype).removeprefix("torch.")))
    rotary, by_layers = rotary_step(6, 2, 64, dtype, has_norm=True)
    qkv = heads_of(6, 2, 64, dtype)
    qk = by_layers(qkv[:, :8])[:NUM_TOKENS, :6]
    q = rotate_and_write(qkv, rotary, pages, slots_here(), LAYER, 6)[:NUM_TOKENS]
    step = torch.finfo(dtype).eps  # the layers round three times
    torch.testing.assert_close(q, qk, rtol=2 * step, atol=4 * step)


def test_a_norm_weight_may_be_wider_than_the_heads():
    pages, _ = pages_of(shape_for((6, 2), 64, torch.bfloat16, "bfloat16"))
    rotary, by_layers = rotary_step(6, 2, 64, torch.bfloat16, has_norm=True, weight_offset=1.0)
    assert rotary.norm_weight.dtype == torch.float32
    qkv = heads_of(6, 2, 64, torch.bfloat16)
    qk = by_layers(qkv[:, :8])[:NUM_TOKENS, :6]
    q = rotate_and_write(qkv, rotary, pages, slots_here(), LAYER, 6)[:NUM_TOKENS]
    torch.testing.assert_close(q, qk, rtol=0.03, atol=0.06)


def test_only_q_is_written_over():
    pages, _ = pages_of(shape_for((6, 2), 64, torch.float32, "float32"))
    rotary, _ = rotary_step(6, 2, 64, torch.float32, has_norm=True)
    qkv = heads_of(6, 2, 64, torch.float32)
    before = qkv.clone()
    q = rotate_and_write(qkv, rotary, pages, slots_here(), LAYER, 6)
    assert q.data_ptr() == qkv.data_ptr()
    assert torch.equal(qkv[:NUM_TOKENS, 6:], before[:NUM_TOKENS, 6:])
    assert not torch.equal(q[:NUM_TOKENS], before[:NUM_TOKENS, :6])


@pytest.mark.parametrize("kv_dtype", ["float32", "float8_e4m3fn", "int8"])
def test_padding_goes_to_the_null_block_alone(kv_dtype):
    pages, raw = pages_of(shape_for((6, 2), 64, torch.float32, kv_dtype))
    rotary, _ = rotary_step(6, 2, 64, torch.float32, has_norm=True)
    slots = torch.zeros_like(slots_here())
    rotate_and_write(heads_of(6, 2, 64, torch.float32), rotary, pages, slots, LAYER, 6)
    write_kv(*heads_of(2, 1, 64, torch.float32)[:, :4].chunk(2, 1), pages, slots, LAYER)
    assert raw.any(1).nonzero().flatten().tolist() == [0]


def test_a_token_has_the_same_bits_in_every_step():
    outputs = []
    for some in (slice(0, 5), slice(2, 3)):
        pages, _ = pages_of(shape_for((6, 2), 64, torch.float32, "int8"))
        rotary, _ = rotary_step(6, 2, 64, torch.float32, has_norm=True)
        part = RotaryStep(rotary.table, rotary.positions[some], rotary.norm_weight, 1e-5)
        qkv = heads_of(6, 2, 64, torch.float32)[some].contiguous()
        q = rotate_and_write(qkv, part, pages, slots_here()[some], LAYER, 6)
        outputs.append((q[slots_here()[some] == 47], numbers_at(pages, slots_here()[2:3], LAYER)))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_no_tokens_are_no_launch():
    pages, raw = pages_of(shape_for((6, 2), 64, torch.float32, "float32"))
    rotary, _ = rotary_step(6, 2, 64, torch.float32, has_norm=False)
    none = torch.empty(0, 10, 64, device=DEVICE)
    q = rotate_and_write(none, rotary, pages, slots_here()[:0], LAYER, 6)
    write_kv(none[:, 6:8], none[:, 8:], pages, slots_here()[:0], LAYER)
    assert q.shape == (0, 6, 64)
    assert not raw.any()


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize("grid", ["few", pytest.param("every", marks=pytest.mark.slow)])
def test_every_variant_fits_a_gpu_without_spills(grid, capability):
    kernels = compiled_in_child(f"kv_write_launches:{grid}", capability)
    assert len(kernels) >= 18
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel
