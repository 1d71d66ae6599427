"""Codes of a checkpoint's quantized weights, as its config describes them, for plans and estimates.

A reader of quantized checkpoints describes a `quantization_config` without torch, and a method that
keeps codes says how many bits it needs for them (`QuantizationCapabilities`).
"""

from dataclasses import dataclass

INTEGERS, NF4, E2M1, E4M3 = "integers", "nf4", "e2m1", "e4m3"
ATTENTION, MLP, HEAD, EMBEDDING = "attention", "mlp", "head", "embedding"
IN_LAYERS = frozenset({ATTENTION, MLP})


@dataclass(frozen=True, slots=True)
class WeightCodes:
    """Codes of a group of weights.

    Attributes:
        values: What codes stand for: "integers", or the name of a table, such as "nf4", "e2m1" or
            "e4m3".
        num_bits: Bits of a code.
        group_size: Number of inputs that share a scale; None: all inputs of an output.
        has_offsets: Whether groups have offsets or zero points.
        parts: Parts of the model that have such weights: "attention", "mlp" (with experts), "head",
            the LM head if it is not tied to the embedding, and "embedding".
        has_wide_scales: Whether scales and offsets have more than 16 bits.
        share: Share of each part's weights that have these codes; the rest is ordinary. None: it is
            not known, and all weights of a part count as its largest codes.
    """

    values: str
    num_bits: int
    group_size: int | None = None
    has_offsets: bool = False
    parts: frozenset[str] = IN_LAYERS
    has_wide_scales: bool = False
    share: float | None = None
