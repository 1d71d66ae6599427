"""Names of the attention layers that quire adds to a transformers model. Needs no torch."""

ATTENTION = "paged_attention"


def attention_name(path: str) -> str:
    """Return the path of the layer in an attention module."""
    return f"{path}.{ATTENTION}"
