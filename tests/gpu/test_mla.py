"""The conformance kit of latent attention on a GPU, with DeepSeek's rows and its 128 heads.

As for other attention, every feature is tried in float32 and in bfloat16.
"""

from dataclasses import replace

from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from quire.testing.mla.mla_contract import MLABackendContract
from quire_attention_backends.mla.torch_mla import TorchMLABackend
from quire_attention_backends.mla.triton_mla import TritonMLABackend

BACKENDS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends
BFLOAT16 = {"dtypes": frozenset({"bfloat16"}), "kv_dtypes": frozenset({"bfloat16"})}
ROWS = ((512, 64), (256, 32), (128, 64), (64, 16))
NUM_HEADS = (1, 4, 20, 128)


class TestTritonMLAInBfloat16(MLABackendContract):
    backend_class = TritonMLABackend
    capabilities = replace(BACKENDS.entry("triton_mla").capabilities, **BFLOAT16)
    device = "cuda"
    rows = ROWS
    num_heads = NUM_HEADS


class TestTorchMLAInBfloat16(MLABackendContract):
    backend_class = TorchMLABackend
    capabilities = replace(BACKENDS.entry("torch_mla").capabilities, **BFLOAT16)
    device = "cuda"
    rows = ROWS
    num_heads = NUM_HEADS


class TestTritonMLA(MLABackendContract):
    backend_class = TritonMLABackend
    capabilities = BACKENDS.entry("triton_mla").capabilities
    device = "cuda"
    rows = ROWS
    num_heads = NUM_HEADS


class TestTorchMLA(MLABackendContract):
    backend_class = TorchMLABackend
    capabilities = BACKENDS.entry("torch_mla").capabilities
    device = "cuda"
    rows = ((64, 16), (512, 64))
