"""Codes of a checkpoint's quantized weights, as its config describes them, for plans and estimates.

A reader of quantized checkpoints describes a `quantization_config` without torch, and a method that
keeps codes says how many bits it needs for them (`QuantizationCapabilities`).
"""

from dataclasses import dataclass

INTEGERS, NF4, E2M1, E4M3 = "integers", "nf4", "e2m1", "e4m3"


@dataclass(frozen=True, slots=True)
class WeightCodes:
    """Codes of the weights of a group of layers.

    Attributes:
        values: What codes stand for: "integers", or the name of a table, such as "nf4", "e2m1" or
            "e4m3".
        num_bits: Bits of a code.
        group_size: Number of inputs that share a scale; None: all inputs of an output.
        has_offsets: Whether groups have offsets or zero points.
        experts_only: Whether only experts of a mixture are quantized so.
        in_head: Whether the LM head is quantized so, if it is not tied to the embedding.
    """

    values: str
    num_bits: int
    group_size: int | None = None
    has_offsets: bool = False
    experts_only: bool = False
    in_head: bool = False
