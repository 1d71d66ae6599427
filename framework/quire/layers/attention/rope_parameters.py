"""Rotary-embedding parameters of a checkpoint's config.json. Torch-free, for models' `describe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues

SUPPORTED = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeParameters:
    """A rotary embedding (Su et al., 2021) and its scaling to longer contexts.

    Attributes:
        theta: Base of the wavelengths.
        kind: Scaling: `default` (none), `linear` or `llama3`.
        factor: Ratio of the scaled to the original context length.
        low_freq_factor: llama3: divisor of the original context length; longer waves are scaled.
        high_freq_factor: llama3: divisor of the original context length; shorter waves are not
            scaled.
        original_max_positions: llama3: context length that the model was trained with.
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


def read_rope(values: ConfigValues, default_theta: float = 10000.0) -> RopeParameters:
    """Read the rotary embedding from a config.json, as transformers 5 and 4 write it.

    Version 5 has `rope_parameters` with everything in it. Version 4 has `rope_theta` and, for
    scaled contexts, `rope_scaling`, whose kind is under `rope_type` or, older, `type`.

    Raises:
        UnsupportedModelError: The kind is not supported, or a value is missing or wrong.
    """
    merged = _merged(values, default_theta)
    rope = ConfigValues(merged, values.architecture, prefix="rope_parameters.")
    kind = rope.text("rope_type", "default")
    if kind not in SUPPORTED:
        raise UnsupportedModelError(
            f"{values.architecture}: rope_type {kind!r} is not supported; quire supports "
            f"{', '.join(SUPPORTED)}"
        )
    _refuse_partial(rope)
    theta = rope.positive("rope_theta")
    if kind == "default":
        return RopeParameters(theta)
    factor = rope.positive("factor")
    if kind == "linear":
        return RopeParameters(theta, kind, factor)
    return _llama3(rope, theta, factor)


def _llama3(rope: ConfigValues, theta: float, factor: float) -> RopeParameters:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        raise UnsupportedModelError(
            f"{rope.architecture}: rope_parameters.high_freq_factor ({high:g}) must be larger than "
            f"low_freq_factor ({low:g})"
        )
    original = rope.count("original_max_position_embeddings")
    return RopeParameters(theta, "llama3", factor, low, high, original)


def _merged(values: ConfigValues, default_theta: float) -> Mapping[str, Any]:
    """Return the values of both versions' keys in one mapping."""
    merged: dict[str, Any] = {"rope_theta": values.positive("rope_theta", default_theta)}
    merged["partial_rotary_factor"] = values.positive("partial_rotary_factor", 1.0)
    merged["original_max_position_embeddings"] = values.count("max_position_embeddings", 0)
    for key in ("rope_scaling", "rope_parameters"):
        found = values.mapping(key)
        if "type" in found and "rope_type" not in found:
            found = {**found, "rope_type": found["type"]}
        merged.update({name: value for name, value in found.items() if value is not None})
    return merged


def _refuse_partial(rope: ConfigValues) -> None:
    factor = rope.positive("partial_rotary_factor")
    if factor != 1.0:
        raise UnsupportedModelError(
            f"{rope.architecture}: partial_rotary_factor {factor:g} is not supported; quire "
            "supports 1 only"
        )
