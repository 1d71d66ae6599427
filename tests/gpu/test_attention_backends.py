"""The conformance kits on a GPU, for every backend that ships."""

from dataclasses import replace

from quire.config import PluginSettings
from quire.plugins import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire_attention_backends.torch_sdpa import TorchSDPABackend
from quire_attention_backends.triton_attention import TritonBackend

BACKENDS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends


def capabilities(name):
    return BACKENDS.entry(name).capabilities


class TestTorchSDPA(AttentionBackendContract):
    backend_class = TorchSDPABackend
    # Equal bits are promised where a try at start-up shows that the matrix library keeps them.
    capabilities = replace(capabilities("torch_sdpa"), batch_invariant=False)
    device = "cuda"


class TestTriton(AttentionBackendContract):
    backend_class = TritonBackend
    capabilities = capabilities("triton")
    device = "cuda"


def test_every_backend_for_a_gpu_is_tried():
    # `cuda` stands beside what it shares, in tests/plugins/attention_backends.
    named = {"torch_sdpa", "triton", "cuda", "torch_mla", "triton_mla"}
    ours = {name for name in BACKENDS if "cuda" in capabilities(name).devices}
    assert ours <= named, f"add {sorted(ours - named)} to this file"
