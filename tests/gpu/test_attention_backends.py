"""The conformance kits on a GPU, for every backend that ships: exact types, and those it is for.

A kit tries most features with the first type that is declared, float32. Tensor cores multiply
bfloat16, by other kernels, so every feature is tried with that as well.
"""

from dataclasses import replace

from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from quire.testing.attention.attention_contract import AttentionBackendContract
from quire_attention_backends.cuda.cuda_attention import CudaBackend
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend
from quire_attention_backends.triton.triton_attention import TritonBackend

BACKENDS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.attention_backends


def capabilities(name):
    declared = BACKENDS.entry(name).capabilities
    # Equal bits are promised where a try at start-up shows that the matrix library keeps them.
    return replace(declared, batch_invariant=False) if name == "torch_sdpa" else declared


def in_bfloat16(name):
    declared = capabilities(name)
    kept = declared.kv_dtypes & {"bfloat16", "float8_e4m3fn", "int8"}
    assert "bfloat16" in kept
    return replace(declared, dtypes=frozenset({"bfloat16"}), kv_dtypes=kept)


class TestTritonInBfloat16(AttentionBackendContract):
    backend_class = TritonBackend
    capabilities = in_bfloat16("triton")
    device = "cuda"


class TestCudaInBfloat16(AttentionBackendContract):
    backend_class = CudaBackend
    capabilities = in_bfloat16("cuda")
    device = "cuda"


class TestTorchSDPAInBfloat16(AttentionBackendContract):
    backend_class = TorchSDPABackend
    capabilities = in_bfloat16("torch_sdpa")
    device = "cuda"


class TestTriton(AttentionBackendContract):
    backend_class = TritonBackend
    capabilities = capabilities("triton")
    device = "cuda"


class TestCuda(AttentionBackendContract):
    backend_class = CudaBackend
    capabilities = capabilities("cuda")
    device = "cuda"


class TestTorchSDPA(AttentionBackendContract):
    backend_class = TorchSDPABackend
    capabilities = capabilities("torch_sdpa")
    device = "cuda"


def test_every_backend_for_a_gpu_is_tried():
    named = {"torch_sdpa", "triton", "cuda", "torch_mla", "triton_mla"}
    ours = {name for name in BACKENDS if "cuda" in BACKENDS.entry(name).capabilities.devices}
    assert ours <= named, f"add {sorted(ours - named)} to this file, or to test_mla.py"
