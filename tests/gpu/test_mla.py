"""The conformance kit of latent attention on a GPU, bfloat16 and DeepSeek's rows included."""

from quire.config import PluginSettings
from quire.plugins import load_plugins
from quire.testing.mla import MLABackendContract
from quire_attention_backends.torch_mla import TorchMLABackend
from quire_attention_backends.triton_mla import TritonMLABackend

BACKENDS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends


class TestTorchMLA(MLABackendContract):
    backend_class = TorchMLABackend
    capabilities = BACKENDS.entry("torch_mla").capabilities
    device = "cuda"


class TestTritonMLA(MLABackendContract):
    backend_class = TritonMLABackend
    capabilities = BACKENDS.entry("triton_mla").capabilities
    device = "cuda"
    rows = ((512, 64), (256, 32), (128, 64), (64, 16))
