"""Plugin registration of the attention backends. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.machine.machine import interprets_kernels

_DTYPES = frozenset({"float32", "bfloat16", "float16"})


@hookimpl
def register_attention_backends(registry: Registrar[type[KVBackend]]) -> None:
    """Register the attention backends of this package."""
    registry.add(
        "torch_sdpa",
        "quire_attention_backends.torch.torch_sdpa:TorchSDPABackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cpu", "cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES | {"float8_e4m3fn", "int8"},
            sliding_window=True,
            attention_chunk=True,
            logit_soft_cap=True,
            padded_pages=True,
            sinks=True,
            alibi=True,
            batch_invariant=True,
        ),
    )
    registry.add(
        "cpu",
        "quire_attention_backends.cpu.cpu_attention:CpuBackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cpu"}),
            dtypes=frozenset({"float32"}),
            kv_dtypes=_DTYPES | {"float8_e4m3fn", "int8"},
            sliding_window=True,
            attention_chunk=True,
            logit_soft_cap=True,
            padded_pages=True,
            sinks=True,
            alibi=True,
            graphs="decode",
            needs_native=True,
            probe="quire_attention_backends.cpu.cpu_library:LIBRARY.unavailable_reason",
            priority=10,
        ),
    )
    registry.add(
        "triton",
        "quire_attention_backends.triton.triton_attention:TritonBackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cuda", "cpu"} if interprets_kernels() else {"cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES | {"float8_e4m3fn", "int8"},
            head_dims=frozenset({32, 64, 80, 96, 112, 128, 160, 192, 256}),
            block_sizes=frozenset({16, 32, 64, 128}),
            sliding_window=True,
            attention_chunk=True,
            logit_soft_cap=True,
            padded_pages=True,
            sinks=True,
            alibi=True,
            batch_invariant=True,
            graphs="full",
            min_compute_capability=80,
            priority=-10 if interprets_kernels() else 20,  # the Triton interpreter is slow
        ),
    )
    registry.add(
        "cuda",
        "quire_attention_backends.cuda.cuda_attention:CudaBackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES | {"float8_e4m3fn"},
            head_dims=frozenset({64, 80, 96, 128, 256}),
            block_sizes=frozenset({16, 32, 64, 128}),
            sliding_window=True,
            attention_chunk=True,
            logit_soft_cap=True,
            padded_pages=True,
            sinks=True,
            graphs="full",
            min_compute_capability=80,
            probe="quire_attention_backends.cuda.cuda_compiler:unavailable_reason",
            priority=10,  # below triton, because it is not measured yet
        ),
    )
    registry.add(
        "torch_mla",
        "quire_attention_backends.mla.torch_mla:TorchMLABackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cpu", "cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES,
            layouts=frozenset({"mla"}),
            padded_pages=True,
        ),
    )
    registry.add(
        "triton_mla",
        "quire_attention_backends.mla.triton_mla:TritonMLABackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cuda", "cpu"} if interprets_kernels() else {"cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES,
            latent_dims=frozenset({32, 64, 128, 256, 512}),
            rope_dims=frozenset({16, 32, 64}),
            layouts=frozenset({"mla"}),
            padded_pages=True,
            graphs="full",
            min_compute_capability=80,
            priority=-10 if interprets_kernels() else 10,  # as for triton
        ),
    )
