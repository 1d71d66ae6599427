"""Factors of scores and outputs: scores end as exponents to base 2, behind a soft cap if any."""

from __future__ import annotations

from quire.interfaces.attention import AttentionLayerParams
from quire_attention_backends.shared.kv_layout import Kind

LOG2_E = 1.4426950408889634


def score_factors(layer: AttentionLayerParams, k_unit: float) -> tuple[float, float]:
    """Return the factor of scores, and the factor of the soft cap's tanh; 0 without a cap.

    Args:
        layer: Parameters of the layer.
        k_unit: Value of one in K, as the kernel reads it from the cache.
    """
    score, cap = layer.scale * k_unit, layer.logit_soft_cap
    return (score * LOG2_E, 0.0) if cap is None else (score / cap, cap * LOG2_E)


def kv_units(
    kind: Kind, layer: AttentionLayerParams, float8_unit: float = 1.0
) -> tuple[float, float]:
    """Return the values of one in K and in V, as a kernel reads them from the cache.

    Args:
        kind: Encoding of the elements.
        layer: Parameters of the layer.
        float8_unit: Value of one in a float8 code as the kernel decodes it.
    """
    if kind != "float8":
        return 1.0, 1.0
    return float8_unit * layer.k_scale, float8_unit * layer.v_scale
