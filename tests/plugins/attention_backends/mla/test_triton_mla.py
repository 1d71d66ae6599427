"""The Triton backend of latent attention fulfils the contract, and its kernels fit a GPU."""

from dataclasses import replace

import pytest
import torch
from dry_launch import compiled_in_child
from kernel_device import DEVICE

from quire.config import PluginSettings
from quire.errors import RefusedError
from quire.interfaces.attention import AttentionQuery
from quire.interfaces.mla import MLAShape
from quire.plugins.loading import load_plugins
from quire.testing.kv_backend.pool_sizes import Padding
from quire.testing.mla import MLABackendContract
from quire.testing.mla.mla_scene import SCALE, MLAScene, MLASizes
from quire_attention_backends.mla.mla_rows import TokenRows
from quire_attention_backends.mla.triton_mla import LATENT_DIMS, ROPE_DIMS, TritonMLABackend

REGISTRY = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends
CAPABILITIES = REGISTRY.entry("triton_mla").capabilities
SLOW_LAUNCHES = ("short_rows", "long_rows", "every_type")
SIZES = MLASizes(device=DEVICE.type)
# The interpreter cannot multiply bfloat16; tests/gpu does.
INTERPRETED = frozenset({"float32", "float16"})


class TestTritonMLA(MLABackendContract):
    backend_class = TritonMLABackend
    capabilities = replace(CAPABILITIES, dtypes=INTERPRETED)
    rows = ((32, 16), (64, 32), (128, 64))

    def tolerance(self, sizes):
        """The interpreter truncates bfloat16 where a GPU rounds to the nearest."""
        return max(super().tolerance(sizes), 8e-2 if sizes.kv_dtype == "bfloat16" else 0.0)

    @pytest.mark.slow  # `test_a_step_is_divided_and_put_together_again` is quicker
    def test_very_uneven_contexts_share_a_step(self):
        super().test_very_uneven_contexts_share_a_step()

    @pytest.mark.slow
    def test_the_order_of_requests_changes_nothing(self):
        super().test_the_order_of_requests_changes_nothing()


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
@pytest.mark.parametrize(
    "launches",
    ["few", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_LAUNCHES)],
)
def test_every_variant_fits_and_spills_nothing(launches, capability):
    kernels = compiled_in_child(f"mla_launches:{launches}", capability)
    assert {kernel.name for kernel in kernels} >= {"attend_items", "merge_parts", "_write_rows"}
    for kernel in kernels:
        assert kernel.fits(), kernel
        assert kernel.local_bytes == 0, kernel


def test_a_step_is_divided_and_put_together_again():
    scene = MLAScene(TritonMLABackend, SIZES)
    numbers = [scene.add(length) for length in (301, 3, 91)]
    for number in numbers:
        compute_all_but_one(scene, number)
    plan = [(number, 1) for number in numbers]
    num_parts = scene.backend.prepare(scene.layout(plan, Padding())).plan.parts[:, 1].tolist()
    assert num_parts[0] > num_parts[2] > 1
    assert num_parts[1] == 0
    for output, expected in scene.step(plan):
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)


def test_rows_may_be_strided():
    scene = MLAScene(TritonMLABackend, SIZES)
    scene.add(5)
    metadata = scene.backend.prepare(scene.layout([(0, 5)], Padding()))
    apart = [torch.stack((x, -x), -1)[..., 0] for x in scene.inputs([(0, 5)])]
    assert {x.stride(-1) for x in apart} == {2}
    out = scene.backend.forward(*apart, scene.kv_cache, metadata, SCALE)
    scene.requests[0].num_computed = 5
    torch.testing.assert_close(out.double(), scene.expected(0, 5), rtol=0, atol=2e-5)


def compute_all_but_one(scene, number):
    """Write the rows as earlier steps would have done; interpreting those takes a minute."""
    request = scene.requests[number]
    *_, latent, k_rope = request.rows
    num_computed = len(latent) - 1
    slots = scene.layout([(number, num_computed)], Padding()).slot_mapping
    rows = torch.cat((latent, k_rope), 1)[:num_computed]
    scene.kv_cache.view(-1, rows.shape[1])[slots] = rows.to(scene.kv_cache)
    request.num_computed = num_computed


def test_many_rows_are_merged_as_few_are(monkeypatch):
    outputs = []
    for many in (2**13, 0):
        monkeypatch.setattr("quire_attention_backends.mla.triton_mla.MANY_PROGRAMS", many)
        scene = MLAScene(TritonMLABackend, replace(SIZES, num_heads=5))
        number = scene.add(70)
        compute_all_but_one(scene, number)
        [(output, expected)] = scene.step([(number, 1)])
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=2e-5)
        outputs.append(output)
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-6)


def test_a_step_of_padding_alone_computes_nothing():
    """As a step is captured before any request is there."""
    scene = MLAScene(TritonMLABackend, SIZES)
    empty = replace(
        scene.layout([(scene.add(4), 4)], Padding()),
        query_start=torch.zeros(3, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.zeros(2, dtype=torch.int32, device=DEVICE),
        block_table=torch.zeros(2, 4, dtype=torch.int32, device=DEVICE),
        slot_mapping=torch.zeros(2, dtype=torch.int64, device=DEVICE),
    )
    metadata = scene.backend.prepare(empty)
    assert metadata.plan.count.item() == 0
    before = scene.raw.clone()
    inputs = [tensor[:2] for tensor in scene.inputs([(0, 4)])]
    scene.backend.forward(*inputs, scene.kv_cache, metadata, SCALE)
    assert torch.equal(before[1:], scene.raw[1:])


@pytest.mark.parametrize("kv_dtype", ["float16", "float32"])
@pytest.mark.parametrize("num_heads", [20, 33])
def test_heads_that_fill_more_than_a_small_tile_are_right(num_heads, kv_dtype):
    """In half precision a tile has 32 heads; its tokens depend on the type of the cache."""
    sizes = replace(SIZES, num_heads=num_heads, dtype="float16", kv_dtype=kv_dtype)
    scene = MLAScene(TritonMLABackend, sizes)
    assert scene.backend._tiles.num_heads == 32
    assert scene.backend._tiles.num_tokens == (32 if kv_dtype == "float16" else 16)
    numbers = [scene.add(length) for length in (71, 2, 33)]
    for number in numbers:
        compute_all_but_one(scene, number)
    for output, expected in scene.step([(number, 1) for number in numbers]):
        torch.testing.assert_close(output.double(), expected, rtol=0, atol=4e-3)


def test_every_declared_row_is_served():
    assert frozenset(LATENT_DIMS) == CAPABILITIES.latent_dims
    assert frozenset(ROPE_DIMS) == CAPABILITIES.rope_dims
    for latent in (32, 512):
        for rope in (16, 64):
            TritonMLABackend(shape(latent, rope))


@pytest.mark.parametrize(("latent", "rope"), [(48, 16), (32, 512)])
def test_a_row_that_only_adds_up_is_refused_by_the_declaration(latent, rope):
    query = AttentionQuery(
        device="cuda",
        dtype="float16",
        kv_dtype="float16",
        num_heads=4,
        num_kv_heads=1,
        head_dim=latent + rope,
        layout="mla",
        latent_dim=latent,
    )
    wrong = f"latent size {latent}" if latent == 48 else f"rotated key size {rope}"
    assert CAPABILITIES.refusal(query).startswith(f"{wrong} is not among")
    assert CAPABILITIES.refusal(replace(query, head_dim=64, latent_dim=32)) is None


@pytest.mark.parametrize(("latent", "rope"), [(544, 32), (512, 48), (48, 16)])
def test_a_row_that_is_cut_otherwise_is_refused(latent, rope):
    wanted = rf"latents of {latent} and .* keys of {rope} .* torch_mla"
    with pytest.raises(RefusedError, match=wanted):
        TritonMLABackend(shape(latent, rope))


def test_tokens_of_padding_belong_to_no_request():
    scene = MLAScene(TritonMLABackend, SIZES)
    plan = [(scene.add(5), 3), (scene.add(9), 1)]
    rows = TokenRows.of(scene.layout(plan, Padding(0, 3)))
    assert rows.requests.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert rows.lengths.tolist() == [1, 2, 3, 1, 0, 0, 0]


def test_rows_need_not_be_contiguous():
    outputs = []
    for apart in (lambda rows: rows, lambda rows: rows.mT.contiguous().mT):
        scene = MLAScene(TritonMLABackend, SIZES)
        scene.add(5)
        metadata = scene.backend.prepare(scene.layout([(0, 5)], Padding()))
        inputs = [apart(rows) for rows in scene.inputs([(0, 5)])]
        outputs.append(scene.backend.forward(*inputs, scene.kv_cache, metadata, SCALE))
    assert torch.equal(*outputs)


def test_the_workspace_is_what_it_allocates():
    backend = TritonMLABackend(shape(512, 64, num_heads=20))
    scratch = (backend._partial, backend._row_max, backend._row_sum)
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in scratch)
    assert TritonMLABackend.workspace_bytes(backend.shape) == allocated


def shape(latent_dim, rope_dim, num_heads=4):
    return MLAShape(
        num_heads=num_heads,
        num_kv_heads=1,
        head_dim=latent_dim + rope_dim,
        latent_dim=latent_dim,
        rope_dim=rope_dim,
        block_size=16,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        max_blocks_per_request=8,
        dtype=torch.float32,
        kv_dtype="float32",
        device=DEVICE,
    )
