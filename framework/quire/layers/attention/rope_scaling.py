"""Scalings of a rotary embedding to longer contexts, by the kinds of config.json. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor (Chen et al., 2023)."""

    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Long waves scaled, short ones kept, and those between interpolated (Llama 3.1).

    Attributes:
        factor: Ratio of the scaled to the original context length.
        low_freq_factor: Divisor of the original context length; longer waves are scaled.
        high_freq_factor: Divisor of the original context length; shorter waves are kept.
        original_max_positions: Context length that the model was trained with.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): interpolation by wavelength, and scaled cosines and sines.

    Attributes:
        factor: Ratio of the scaled to the original context length.
        original_max_positions: Context length that the model was trained with.
        attention_factor: Factor on cosines and sines.
        beta_fast: Turns within the original context above which a wave is kept.
        beta_slow: Turns within the original context below which a wave is scaled.
        truncate: Whether the bounds of the interpolated range are rounded to whole elements.
    """

    factor: float
    original_max_positions: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): a factor for each wave, of one list of two.

    An engine uses one list for all requests: the long one if its longest context exceeds the
    original one.

    Attributes:
        short_factors: Divisors of the frequencies, up to the original context length.
        long_factors: Divisors of the frequencies for longer contexts.
        original_max_positions: Context length that the model was trained with.
        short_attention_factor: Factor on cosines and sines with the short list.
        long_attention_factor: Factor on cosines and sines with the long list.
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    short_attention_factor: float
    long_attention_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK-aware scaling of the base, by the longest context of the engine."""

    factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProportionalScaling:
    """Frequencies of the whole head, of which only the highest ones are used (Gemma 4).

    Attributes:
        factor: Divisor of the frequencies.
        rotated_share: Share of the pairs of elements that are rotated.
    """

    factor: float = 1.0
    rotated_share: float = 1.0


RopeScaling = (
    LinearScaling
    | Llama3Scaling
    | YarnScaling
    | LongRopeScaling
    | DynamicScaling
    | ProportionalScaling
)
