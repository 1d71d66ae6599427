"""The rotary embedding of a GGUF file, as config.json has it.

Factors of wavelengths are in tensors: one list in files of Llama 3.1 and later, which have its
scaling computed, and a long and a short one in those of Phi 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from quire.compose.gguf.family import Family
from quire.compose.gguf.model_values import COPY_AGAIN, ModelValues
from quire.errors import CheckpointCorruptError, UnsupportedModelError

ROPE_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
FACTOR_TENSORS = (ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS)
SCALING, FACTOR, ORIGINAL, ATTENTION_FACTOR = (
    f"rope.scaling.{name}" for name in ("type", "factor", "original_context_length", "attn_factor")
)
YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_attn_factor": "attention_factor",
    ATTENTION_FACTOR: "attention_factor",
}
THETA, WINDOW_THETA = "rope.freq_base", "rope.freq_base_swa"
WINDOW_ROTATED, WINDOW_HEAD_SIZE, WINDOW_VALUE_SIZE = (
    "rope.dimension_count_swa", "attention.key_length_swa", "attention.value_length_swa",
)  # fmt: skip
OWN_ROPE_KEYS = frozenset({WINDOW_THETA, WINDOW_ROTATED, WINDOW_VALUE_SIZE})
NEVER = 1e30  # factor of wavelengths that are not rotated
SCALING_KEYS = frozenset({SCALING, FACTOR, ORIGINAL, *YARN})


def rope_scaling(
    values: ModelValues, family: Family, rotary_dim: int, max_len: int
) -> Mapping[str, Any]:
    """Return the values of the config for a scaled rotary embedding.

    Args:
        values: Metadata and tensors of the model.
        family: Its architecture.
        rotary_dim: Number of elements of a head that are rotated.
        max_len: Longest context of the model.

    Raises:
        UnsupportedModelError: The scaling is of another kind, or contradicts a tensor.
        CheckpointCorruptError: A value is missing or wrong.
    """
    kind = values.get(SCALING) or "none"
    if family.has_own_ropes:
        return {"rope_parameters": _own_ropes(values, kind, rotary_dim)}
    if values.has_tensor(ROPE_FACTORS):
        factors = _factors(values, ROPE_FACTORS, kind, rotary_dim)
        return {"rope_scaling": _by_wavelength(factors, factors, max_len, 1.0)}
    if values.has_tensor(SHORT_FACTORS) or values.has_tensor(LONG_FACTORS):
        return _long_and_short(values, kind, rotary_dim)
    if kind != "yarn" and values.get(ATTENTION_FACTOR) not in (None, 0, 1):
        raise UnsupportedModelError(
            f"{values.where} sets {values.key(ATTENTION_FACTOR)} with a {values.key(SCALING)} of "
            f"{kind!r}; quire reads it with yarn, and with factors in a tensor"
        )
    if kind == "none":
        return {"rope_scaling": {"rope_type": "default"}} if family.rope else {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": values.number(FACTOR)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = values.count(ORIGINAL)
        scaling |= {ours: values.number(key) for key, ours in YARN.items() if values.get(key)}
        scaling |= {**family.rope, **_own_values(values, family)}
    elif kind != "linear":
        raise UnsupportedModelError(
            f"{values.where} has a {values.key(SCALING)} of {kind!r}; quire reads linear and "
            "yarn, and factors in a tensor"
        )
    return {"rope_parameters" if family.rope_keys else "rope_scaling": scaling}


def _own_values(values: ModelValues, family: Family) -> Mapping[str, float]:
    return {ours: values.number(key) for key, ours in family.rope_keys.items()}


def _long_and_short(values: ModelValues, kind: str, rotary_dim: int) -> Mapping[str, Any]:
    """Return the scaling of Phi 3: a list of factors for long contexts, and one for short ones."""
    original = values.count(ORIGINAL)
    kind = "none" if kind == "longrope" else kind
    short, long = (
        _factors(values, name, kind, rotary_dim) for name in (SHORT_FACTORS, LONG_FACTORS)
    )
    factor = values.number(ATTENTION_FACTOR, 1.0)
    return {
        "rope_scaling": _by_wavelength(short, long, original, factor),
        "original_max_position_embeddings": original,
    }


def _own_ropes(values: ModelValues, kind: str, rotary_dim: int) -> Mapping[str, Any]:
    """Return the embeddings of full layers, which rotate the short wavelengths, and of others."""
    factors = _factors(values, ROPE_FACTORS, kind, rotary_dim)
    num_rotated = factors.count(1.0)
    if factors != [1.0] * num_rotated + [factors[-1]] * (len(factors) - num_rotated) or (
        0 < num_rotated < len(factors) and factors[-1] < NEVER / 10
    ):
        raise UnsupportedModelError(
            f"tensor {ROPE_FACTORS} in {values.where} must be ones, and {NEVER:g} behind them"
        )
    head_dim = values.count(WINDOW_HEAD_SIZE)
    for key in (WINDOW_ROTATED, WINDOW_VALUE_SIZE):
        if values.count(key, head_dim) != head_dim:
            raise values.wrong(key, values.get(key), f"{head_dim}, as {WINDOW_HEAD_SIZE}")
    return {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": values.number(THETA),
            "partial_rotary_factor": num_rotated / len(factors),
        },
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": values.number(WINDOW_THETA, 10_000.0),
        },
    }


def _by_wavelength(
    short: list[float], long: list[float], original: int, factor: float
) -> Mapping[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
        "attention_factor": factor,
    }


def _factors(values: ModelValues, name: str, kind: str, rotary_dim: int) -> list[float]:
    """Return the factor of each wavelength.

    Raises:
        UnsupportedModelError: The tensor has another shape or type, or there is a scaling beside.
        CheckpointCorruptError: Factors are not finite, or not above 0.
    """
    tensor = values.tensor(name)
    if kind != "none" or tensor.shape != (rotary_dim // 2,) or tensor.type.name != "F32":
        raise UnsupportedModelError(
            f"tensor {name} in {values.where} has shape {list(tensor.shape)} and type "
            f"{tensor.type.name} beside a {values.key(SCALING)} of {kind!r}; quire reads "
            f"{rotary_dim // 2} factors of type F32 without any other scaling"
        )
    factors = values.floats(tensor)
    wrong = [factor for factor in factors if not (isfinite(factor) and factor > 0)]
    if wrong:
        raise CheckpointCorruptError(
            f"tensor {name} in {values.where} has {len(wrong)} factors that are not finite or not "
            f"above 0, such as {wrong[0]}; {COPY_AGAIN}"
        )
    return factors
