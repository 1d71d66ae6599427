"""What readers of config.json have in common: sizes, attention, MLP, norm and layer types.

A function takes the values and returns options; keyword arguments are the options that a family
sets itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from quire.errors import UnsupportedModelError
from quire.layers.activation_names import ACTIVATIONS
from quire.layers.attention.rope_parameters import ORIGINAL, RopeParameters, read_rope
from quire.layers.config_values import ConfigValues
from quire_models.decoder.options.attention_config import AttentionConfig, NormConfig
from quire_models.decoder.options.decoder_config import DecoderConfig, LayerConfig
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.decoder.options.moe_config import DualMLPConfig, MoEConfig

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
DENSE, SPARSE = "dense", "sparse"


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Numbers and size of attention heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def as_options(self) -> Mapping[str, Any]:
        """The sizes as options of `AttentionConfig`."""
        return {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
        }


def read_heads(values: ConfigValues) -> HeadSizes:
    """Return numbers and size of the attention heads.

    Args:
        values: Values of config.json; without `num_key_value_heads` there are as many as query
            heads, without `head_dim` it is the hidden size over their number.

    Raises:
        UnsupportedModelError: A value is missing, wrong or not supported.
    """
    hidden, heads = values.count("hidden_size"), values.count("num_attention_heads")
    kv_heads = values.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise UnsupportedModelError(
            f"{values.architecture}: num_attention_heads ({heads}) must be a multiple of "
            f"num_key_value_heads ({kv_heads})"
        )
    return HeadSizes(heads, kv_heads, _head_dim(values, hidden, heads))


def read_equal_heads(values: ConfigValues) -> HeadSizes:
    """Return the sizes of an architecture with as many key/value heads as query heads."""
    sizes = read_heads(values)
    return replace(sizes, num_kv_heads=sizes.num_heads)


def read_attention(
    values: ConfigValues,
    *,
    heads: HeadSizes | None = None,
    rope: RopeParameters | None = None,
    **options: Any,
) -> AttentionConfig:
    """Return the options of attention; by default with a rotary embedding and without biases."""
    sizes = read_heads(values) if heads is None else heads
    found = {
        "scale": sizes.head_dim**-0.5,
        "rope": read_rope(values, head_dim=sizes.head_dim) if rope is None else rope,
        **options,
    }
    return AttentionConfig(**sizes.as_options, **found)


def read_rope_of(values: ConfigValues, kind: str) -> RopeParameters:
    """Return the rotary embedding of a type of layer, where types may have their own.

    Version 5 of transformers has an entry in `rope_parameters` for each type; a file without them
    has one embedding, which version 4 scales in full layers only.
    """
    own = values.nested("rope_parameters").mapping(kind)
    hidden: dict[str, Any] = {"rope_scaling": None} if kind == SLIDING else {}
    if own:
        hidden = {"rope_parameters": own, ORIGINAL: None}
    return read_rope(values.with_values(hidden))


def with_renamed_rope(values: ConfigValues, former: str, kind: str) -> ConfigValues:
    """Return the values with the name of a kind of rotary embedding in place of another."""
    found = {}
    for key in ("rope_parameters", "rope_scaling"):
        rope = values.mapping(key)
        names = {name: kind for name in ("type", "rope_type") if rope.get(name) == former}
        found[key] = {**rope, **names}
    return values.with_values(found)


def read_mlp(
    values: ConfigValues,
    *,
    width: str = "intermediate_size",
    activation: str = "hidden_act",
    default_activation: str = "silu",
    **options: Any,
) -> MLPConfig:
    """Return the options of the MLP, from the keys of its width and its activation."""
    return MLPConfig(
        width=values.count(width),
        activation=read_activation(values, activation, default_activation),
        **options,
    )


def read_activation(values: ConfigValues, key: str, default: str, also: Sequence[str] = ()) -> str:
    """Return the name of an activation that quire has, or that the family replaces.

    Raises:
        UnsupportedModelError: It is another activation.
    """
    name = values.text(key, default)
    if name not in (*ACTIVATIONS, *also):
        raise UnsupportedModelError(
            f"{values.architecture}: {key} {name!r} is not supported; quire supports "
            f"{', '.join(sorted(ACTIVATIONS))}"
        )
    return name


def read_rms_norm(values: ConfigValues, default: float = 1e-6, **options: Any) -> NormConfig:
    """Return the options of an RMS norm."""
    return NormConfig(eps=values.positive("rms_norm_eps", default), **options)


def read_layer_norm(
    values: ConfigValues, key: str = "layer_norm_eps", default: float = 1e-5, **options: Any
) -> NormConfig:
    """Return the options of a LayerNorm, by default with a weight and a bias."""
    found = {"has_bias": True, **options}
    return NormConfig(kind="layer", eps=values.positive(key, default), **found)


def same_layers(
    values: ConfigValues,
    attention: AttentionConfig | MLAConfig,
    mlp: MLPConfig | MoEConfig | DualMLPConfig,
) -> tuple[LayerConfig, ...]:
    """Return equal layers."""
    return (LayerConfig(attention=attention, mlp=mlp),) * values.count("num_hidden_layers")


def layers_by_type(
    kinds: Sequence[str],
    attentions: Mapping[str, AttentionConfig],
    mlp: MLPConfig | MoEConfig | DualMLPConfig,
) -> tuple[LayerConfig, ...]:
    """Return layers whose attention depends on their type."""
    return tuple(LayerConfig(attention=attentions[kind], mlp=mlp) for kind in kinds)


def read_decoder(
    values: ConfigValues, layers: Sequence[LayerConfig], norm: NormConfig, **options: Any
) -> DecoderConfig:
    """Return the options of a decoder with these layers."""
    if "max_positions" not in options:
        options["max_positions"] = values.count("max_position_embeddings")
    if "tie_word_embeddings" not in options:
        options["tie_word_embeddings"] = values.flag("tie_word_embeddings", False)
    return DecoderConfig(
        vocab_size=values.count("vocab_size"),
        hidden_size=values.count("hidden_size"),
        layers=tuple(layers),
        norm=norm,
        **options,
    )


def moe_layers(
    attentions: Sequence[AttentionConfig | MLAConfig],
    dense: MLPConfig,
    moe: MoEConfig,
    is_moe: Sequence[bool],
) -> tuple[LayerConfig, ...]:
    """Return layers of which some have experts, and the others an MLP."""
    pairs = zip(attentions, is_moe, strict=True)
    return tuple(
        LayerConfig(attention=attention, mlp=moe if has_experts else dense)
        for attention, has_experts in pairs
    )


def layers_with_experts(values: ConfigValues, num_dense: int) -> list[bool]:
    """Return whether each layer has experts.

    Args:
        values: Values of config.json.
        num_dense: Number of the first layers without, for files without `mlp_layer_types`.

    Raises:
        UnsupportedModelError: A type is not known, or there is not one for each layer.
    """
    num_layers, kinds = values.count("num_hidden_layers"), values.names("mlp_layer_types")
    if not kinds:
        return [layer >= num_dense for layer in range(num_layers)]
    if len(kinds) != num_layers or set(kinds) - {DENSE, SPARSE}:
        wanted = f"{DENSE} or {SPARSE} for each of the {num_layers} layers"
        raise values.wrong("mlp_layer_types", list(kinds), wanted)
    return [kind == SPARSE for kind in kinds]


def read_layer_types(
    values: ConfigValues,
    default: Callable[[int], str] = lambda _: FULL,
    known: Sequence[str] = (FULL, SLIDING),
) -> tuple[str, ...]:
    """Return the type of each layer.

    Args:
        values: Values of config.json.
        default: Function from the index of a layer to its type, for files without `layer_types`.
        known: Types that the family has.

    Raises:
        UnsupportedModelError: A type is not known, or there is not one for each layer.
    """
    num_layers, kinds = values.count("num_hidden_layers"), values.names("layer_types")
    if not kinds:
        return tuple(map(default, range(num_layers)))
    if unknown := set(kinds) - set(known):
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types {', '.join(sorted(unknown))} are not supported; "
            f"supported are {' and '.join(known)}"
        )
    if len(kinds) != num_layers:
        raise UnsupportedModelError(
            f"{values.architecture}: layer_types has {len(kinds)} entries for num_hidden_layers "
            f"({num_layers})"
        )
    return kinds


def layers_with_rope(values: ConfigValues, listed: Sequence[int] | None) -> list[bool]:
    """Return whether each layer has a rotary embedding.

    Args:
        values: Values of config.json.
        listed: Value of `no_rope_layers`, 0 for a layer without one; None: one layer in
            `no_rope_layer_interval` has none.

    Raises:
        UnsupportedModelError: There is not a 0 or 1 for each layer.
    """
    num_layers = values.count("num_hidden_layers")
    if listed is None:
        interval = values.count("no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if len(listed) != num_layers or set(listed) - {0, 1}:
        wanted = f"a 0 or 1 for each of the {num_layers} layers"
        raise values.wrong("no_rope_layers", list(listed), wanted)
    return [bool(each) for each in listed]


def optional_number(values: ConfigValues, key: str) -> float | None:
    """Return a number above zero; None if the key is missing or null."""
    return values.positive(key) if values.has(key) else None


def optional_count(values: ConfigValues, key: str) -> int | None:
    """Return a whole number from 1; None if the key is missing or null."""
    return values.count(key) if values.has(key) else None


def refuse_flag(values: ConfigValues, key: str, reason: str) -> None:
    """Check that an option is off.

    Raises:
        UnsupportedModelError: It is on.
    """
    if values.flag(key, False):
        raise UnsupportedModelError(
            f"{values.architecture}: {key} is not supported by this model class; {reason}"
        )


def _head_dim(values: ConfigValues, hidden: int, heads: int) -> int:
    if not values.has("head_dim") and hidden % heads:
        raise UnsupportedModelError(
            f"{values.architecture}: hidden_size ({hidden}) is not a multiple of "
            f"num_attention_heads ({heads}), and config.json has no head_dim"
        )
    head_dim = values.count("head_dim", hidden // heads)
    if head_dim % 2:
        raise UnsupportedModelError(
            f"{values.architecture}: head_dim ({head_dim}) must be even; quire does not support "
            "odd head sizes"
        )
    return head_dim
