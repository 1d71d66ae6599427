"""Names of layers that stand for the parts of a model, to find which options are theirs.

A config has patterns of names, and not the names of its model.
"""

from collections.abc import Iterator

from quire.interfaces.weight_codes import ATTENTION, HEAD, MLP

PREFIXES = ("model.layers.", "language_model.model.layers.", "model.language_model.layers.")
LAYERS = (1, 0)  # the first may be another one
NAMES = {
    ATTENTION: ("self_attn.q_proj", "self_attn.o_proj"),
    MLP: ("mlp.down_proj", "mlp.up_proj", "mlp.experts.0.down_proj", "mlp.experts.0.up_proj"),
}
LM_HEAD = "lm_head"


def spellings_of(part: str) -> Iterator[tuple[str, ...]]:
    """Yield layers of a part: for each, the names that it has in models of different wrapping."""
    if part == HEAD:
        yield (LM_HEAD,)
    for name in NAMES.get(part, ()):
        for layer in LAYERS:
            yield tuple(f"{prefix}{layer}.{name}" for prefix in PREFIXES)
