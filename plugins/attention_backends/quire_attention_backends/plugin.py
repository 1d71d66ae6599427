"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.attention import AttentionBackend, AttentionCapabilities
from quire.registry import Registrar

_DTYPES = frozenset({"float32", "bfloat16", "float16"})


@hookimpl
def register_attention_backends(registry: Registrar[type[AttentionBackend]]) -> None:
    """Offer the attention backends below."""
    registry.add(
        "torch_sdpa",
        "quire_attention_backends.torch_sdpa:TorchSDPABackend",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cpu", "cuda"}),
            dtypes=_DTYPES,
            kv_dtypes=_DTYPES,
            sliding_window=True,
            attention_chunk=True,
            logit_soft_cap=True,
            padded_pages=True,
            batch_invariant=True,
        ),
    )
