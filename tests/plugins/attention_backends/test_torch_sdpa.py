"""The reference backend passes the conformance kit."""

import pytest
import torch

from quire.errors import RefusedError
from quire.interfaces.kv_cache import KVLayer
from quire.plugins import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire_attention_backends.torch_sdpa import TorchSDPABackend
from quire_kv_cache_specs.full_attention import FullAttentionSpec

ENTRY = load_plugins().registries.attention_backends.entry("torch_sdpa")


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class TestTorchSDPA(AttentionBackendContract):
    backend_class = TorchSDPABackend
    capabilities = ENTRY.capabilities


def spec(kv_dtype="float32"):
    return FullAttentionSpec(KVLayer("layers.0.attn", "full_attention", 2, 32), 16, kv_dtype)


def test_the_view_has_heads_before_tokens():
    page = spec().page_bytes
    raw = torch.zeros(5 * page, dtype=torch.uint8)
    assert TorchSDPABackend.kv_view(raw, spec(), 5).shape == (5, 2, 2, 16, 32)


def test_a_quantized_cache_is_refused():
    raw = torch.zeros(spec("int8").page_bytes, dtype=torch.uint8)
    with pytest.raises(RefusedError, match="int8"):
        TorchSDPABackend.kv_view(raw, spec("int8"), 1)


def test_pages_that_are_not_k_and_v_are_refused():
    class OddSpec(FullAttentionSpec):
        @property
        def page_bytes(self):
            return super().page_bytes + 4

    odd = OddSpec(spec().layer, 16, "float32")
    with pytest.raises(RefusedError, match=r"layers\.0\.attn"):
        TorchSDPABackend.kv_view(torch.zeros(odd.page_bytes, dtype=torch.uint8), odd, 1)
