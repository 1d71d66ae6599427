"""The reference backend of latent attention keeps the contract."""

from quire.config import PluginSettings
from quire.plugins import load_plugins
from quire.testing.mla import MLABackendContract
from quire_attention_backends.torch_mla import TorchMLABackend

REGISTRY = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends


class TestTorchMLA(MLABackendContract):
    backend_class = TorchMLABackend
    capabilities = REGISTRY.entry("torch_mla").capabilities
    rows = ((64, 16), (32, 16), (512, 64), (48, 10))
