"""The reference backend of latent attention fulfils the contract."""

from dataclasses import replace

import pytest
import torch

from quire.config import PluginSettings
from quire.errors import RefusedError
from quire.plugins.loading import load_plugins
from quire.testing.kv_backend.pool_sizes import Padding
from quire.testing.mla import MLABackendContract
from quire.testing.mla.mla_scene import SCALE, MLAScene, MLASizes
from quire_attention_backends.mla import torch_mla
from quire_attention_backends.mla.torch_mla import TorchMLABackend

REGISTRY = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends


class TestTorchMLA(MLABackendContract):
    backend_class = TorchMLABackend
    capabilities = REGISTRY.entry("torch_mla").capabilities
    rows = ((64, 16), (32, 16), (512, 64), (48, 10))


@pytest.mark.parametrize(
    ("limit", "num_bytes"),
    [
        ("MAX_GATHERED_BYTES", 60 * (32 + 16) * 4),  # rows of two requests
        ("MAX_SCORES_BYTES", 60 * 4 * 4),  # scores of four heads
    ],
)
def test_a_step_that_would_take_too_much_is_done_in_batches(limit, num_bytes, monkeypatch):
    monkeypatch.setattr(torch_mla, limit, num_bytes)
    scene = MLAScene(TorchMLABackend, MLASizes(num_heads=4, latent_dim=32, rope_dim=16))
    numbers = [scene.add(30) for _ in range(4)]
    scene.step([(number, 29) for number in numbers])
    plan = [(number, 1) for number in numbers]
    batches = scene.backend.prepare(scene.layout(plan, Padding())).batches
    assert [len(batch.context) for batch in batches] == [2, 2]
    for output, expected in scene.step(plan):
        torch.testing.assert_close(output.double(), expected, atol=2e-5, rtol=0)


def test_a_step_of_padding_alone_is_computed():
    scene = MLAScene(TorchMLABackend, MLASizes())
    layout = replace(
        scene.layout([(scene.add(4), 2)], Padding()),
        query_start=torch.zeros(2, dtype=torch.int32),
        seq_lens=torch.zeros(1, dtype=torch.int32),
        slot_mapping=torch.zeros(2, dtype=torch.int64),
        query_lens_host=[],
        seq_lens_host=[],
    )
    inputs = scene.inputs([(0, 2)])
    metadata = scene.backend.prepare(layout)
    out = scene.backend.forward(*inputs, scene.kv_cache, metadata, SCALE)
    assert out.shape == inputs[0].shape


@pytest.mark.parametrize(("extra_bytes", "distance"), [(4, 4), (0, 2)])
def test_pages_that_are_no_rows_are_refused(extra_bytes, distance):
    spec = MLASizes().spec
    page_bytes = spec.page_bytes + extra_bytes

    class OddSpec(type(spec)):
        @property
        def page_bytes(self):
            return page_bytes

    odd = OddSpec(spec.layer, spec.block_size, spec.kv_dtype)
    raw = torch.zeros(3, page_bytes + distance, dtype=torch.uint8)[:, :page_bytes]
    with pytest.raises(RefusedError, match="torch_mla cannot use the KV cache"):
        TorchMLABackend.kv_view(raw, odd, 3)
