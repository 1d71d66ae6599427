"""Rotary-embedding parameters of a checkpoint's config.json. Torch-free, for models' `describe`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.layers.attention.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RopeScaling,
    YarnScaling,
)
from quire.layers.config_values import MAX_FLOAT, ConfigValues

ORIGINAL = "original_max_position_embeddings"


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A rotary embedding (Su et al., 2021) and its scaling to longer contexts.

    Attributes:
        theta: Base of the wavelengths.
        scaling: Scaling to longer contexts; None: none.
        rotary_dim: Number of a head's first elements that are rotated; None: all.
        is_interleaved: Whether neighbouring elements are rotated together (0 with 1, 2 with 3);
            otherwise an element of the first half with one of the second.
    """

    theta: float
    scaling: RopeScaling | None = None
    rotary_dim: int | None = None
    is_interleaved: bool = False


def read_rope(
    values: ConfigValues,
    default_theta: float = 10000.0,
    *,
    head_dim: int | None = None,
    partial_factor: float = 1.0,
    is_interleaved: bool = False,
) -> RopeParameters:
    """Read the rotary embedding from a config.json, as transformers 5 and 4 write it.

    Version 5 has `rope_parameters` with everything in it. Version 4 has `rope_theta` and, for
    scaled contexts, `rope_scaling`, whose kind is under `rope_type` or, older, `type`.

    Args:
        values: Values of config.json.
        default_theta: Base of the wavelengths if the file has none.
        head_dim: Elements per head; None: a partial rotary embedding is refused.
        partial_factor: Rotated share of a head if the file has no `partial_rotary_factor`.
        is_interleaved: Whether the architecture rotates neighbouring elements together.

    Raises:
        UnsupportedModelError: The kind is not supported, or a value is missing or wrong.
    """
    merged = _merged(values, default_theta, partial_factor)
    rope = ConfigValues(merged, values.architecture, prefix="rope_parameters.")
    kind = rope.text("rope_type", "default")
    if kind not in SCALINGS:
        raise UnsupportedModelError(
            f"{values.architecture}: rope_type {kind!r} is not supported; quire supports "
            f"{', '.join(SCALINGS)}"
        )
    rotary_dim = None if kind == "proportional" else _rotary_dim(rope, head_dim)
    theta = _theta(rope, kind, rotary_dim or head_dim)
    return RopeParameters(theta, SCALINGS[kind](rope), rotary_dim, is_interleaved)


def _theta(rope: ConfigValues, kind: str, dim: int | None) -> float:
    """Return the base of the wavelengths; Hunyuan's is scaled by a constant `alpha`."""
    theta = rope.positive("rope_theta")
    if kind != "dynamic" or not rope.has("alpha"):
        return theta
    if dim is None:
        raise UnsupportedModelError(
            f"{rope.architecture}: rope_parameters.alpha is not supported by this model class"
        )
    alpha = rope.positive("alpha")
    base = math.inf if dim <= 2 else float(theta * alpha ** (dim / (dim - 2)))
    if base > MAX_FLOAT:
        raise UnsupportedModelError(
            f"{rope.architecture}: rope_parameters.alpha {alpha:g} gives no finite base of the "
            f"wavelengths with a head_dim of {dim}"
        )
    return base


def _linear(rope: ConfigValues) -> LinearScaling:
    return LinearScaling(rope.positive("factor"))


def _llama3(rope: ConfigValues) -> Llama3Scaling:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        raise UnsupportedModelError(
            f"{rope.architecture}: rope_parameters.high_freq_factor ({high:g}) must be larger than "
            f"low_freq_factor ({low:g})"
        )
    return Llama3Scaling(
        factor=rope.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.count(ORIGINAL),
    )


def _yarn(rope: ConfigValues) -> YarnScaling:
    original = rope.count(ORIGINAL)
    if rope.positive("rope_theta") <= 1.0:  # the elements are found by its logarithm
        raise rope.wrong("rope_theta", rope.config["rope_theta"], "a number above 1 for yarn")
    factor = rope.positive("factor", rope.count("max_position_embeddings") / original)
    return YarnScaling(
        factor=factor,
        original_max_positions=original,
        attention_factor=_yarn_attention_factor(rope, factor),
        beta_fast=rope.positive("beta_fast", 32.0),
        beta_slow=rope.positive("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's factor on the attention logits' square root for a scaling by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _yarn_attention_factor(rope: ConfigValues, factor: float) -> float:
    """Return the factor on cosines and sines; configs of DeepSeek give it as a ratio."""
    if rope.config.get("mscale") and rope.config.get("mscale_all_dim"):
        above, below = rope.positive("mscale"), rope.positive("mscale_all_dim")
        default = yarn_magnitude(factor, above) / yarn_magnitude(factor, below)
    else:
        default = yarn_magnitude(factor)
    return rope.positive("attention_factor", default)


def _longrope(rope: ConfigValues) -> LongRopeScaling:
    original = rope.count(ORIGINAL)
    if original == 1:  # its logarithm is a divisor
        raise rope.wrong(ORIGINAL, original, "a whole number from 2 for longrope")
    factor = rope.positive("factor", rope.count("max_position_embeddings") / original)
    default = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    attention_factor = rope.positive("attention_factor", default)
    return LongRopeScaling(
        short_factors=rope.numbers("short_factor"),
        long_factors=rope.numbers("long_factor"),
        original_max_positions=original,
        short_attention_factor=rope.positive("short_mscale", attention_factor),
        long_attention_factor=rope.positive("long_mscale", attention_factor),
    )


def _dynamic(rope: ConfigValues) -> DynamicScaling | None:
    if rope.has("alpha"):  # scales the base, whatever the length
        return None
    return DynamicScaling(
        factor=rope.positive("factor"), original_max_positions=rope.count("max_position_embeddings")
    )


def _proportional(rope: ConfigValues) -> ProportionalScaling:
    return ProportionalScaling(
        factor=rope.positive("factor", 1.0), rotated_share=rope.positive("partial_rotary_factor")
    )


SCALINGS: Mapping[str, Callable[[ConfigValues], RopeScaling | None]] = {
    "default": lambda _: None,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "dynamic": _dynamic,
    "proportional": _proportional,
}


def _merged(values: ConfigValues, default_theta: float, partial: float) -> Mapping[str, Any]:
    """Return the values of both versions' keys in one mapping."""
    longest = values.count("max_position_embeddings", 0)
    merged: dict[str, Any] = {
        "rope_theta": values.positive("rope_theta", default_theta),
        "partial_rotary_factor": values.positive("partial_rotary_factor", partial),
        "max_position_embeddings": longest,
        ORIGINAL: longest,
    }
    for key in ("rope_scaling", "rope_parameters"):
        found = values.mapping(key)
        if "type" in found and "rope_type" not in found:
            found = {**found, "rope_type": found["type"]}
        for name, value in found.items():
            if value is not None or name not in merged:  # null does not replace a value
                merged[name] = value
    if values.has(ORIGINAL):  # counts before that of the embedding itself
        merged[ORIGINAL] = values.count(ORIGINAL)
    if merged.get("rope_type") == "su":
        merged["rope_type"] = "longrope"  # its former name
    return merged


def _rotary_dim(rope: ConfigValues, head_dim: int | None) -> int | None:
    factor = rope.positive("partial_rotary_factor")
    if factor == 1.0:
        return None
    if head_dim is None or factor > 1.0:
        supported = "1 only" if head_dim is None else "up to 1"
        raise UnsupportedModelError(
            f"{rope.architecture}: partial_rotary_factor {factor:g} is not supported; quire "
            f"supports {supported}"
        )
    rotary_dim = int(head_dim * factor)
    if rotary_dim % 2 or not rotary_dim:
        raise UnsupportedModelError(
            f"{rope.architecture}: partial_rotary_factor {factor:g} of head_dim {head_dim} rotates "
            f"{rotary_dim} elements, which must be an even number from 2"
        )
    return rotary_dim
