"""The table of contents of this plugin. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.attention import AttentionBackend
from quire.registry import Registrar


@hookimpl
def register_attention_backends(registry: Registrar[type[AttentionBackend]]) -> None:
    """Offer the attention backends below."""
