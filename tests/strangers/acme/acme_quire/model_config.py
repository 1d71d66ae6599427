"""Model description of Acme's config.json for the engine; needs no torch."""

from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues


def attention_name(layer: int) -> str:
    """Return the module path of a layer's attention."""
    return f"layers.{layer}.attention"


def describe(config):
    """Return the description of a model from its config.json."""
    values = ConfigValues(config, "AcmeForCausalLM")
    hidden, heads = values.count("width"), values.count("heads")
    kv_heads, num_layers = values.count("kv_heads", heads), values.count("depth")
    vocab_size, head_dim = values.count("vocab_size"), hidden // heads
    qkv = (heads + 2 * kv_heads) * head_dim * (hidden + 1)
    layer_params = qkv + hidden * hidden + 2 * hidden * 4 * hidden + 2 * hidden
    return ModelDescription(
        architecture="AcmeForCausalLM",
        config=config,
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_layers=num_layers,
        num_heads=heads,
        max_model_len=values.count("max_positions"),
        num_params=vocab_size * hidden + num_layers * layer_params + 2 * hidden,
        checkpoint_dtype="float32",
        kv_layers=tuple(
            KVLayer(attention_name(layer), "full_attention", kv_heads, head_dim)
            for layer in range(num_layers)
        ),
    )
