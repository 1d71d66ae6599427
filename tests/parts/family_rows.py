"""Rows of the table in docs/models.md: what a family's layers can do, read from its decoder."""

from collections.abc import Iterator
from typing import Any

from family_cases import CASES
from family_checkpoints import MISSING

from quire.testing.model import TINY_SIZES
from quire_models.decoder.options.decoder_config import DecoderConfig, describe_decoder
from quire_models.decoder.options.mla_config import MLAConfig
from quire_models.decoder.options.mlp_config import MLPConfig
from quire_models.family_table import FAMILIES, Family, read_decoder_config

HEADER = (
    "models",
    "architecture",
    "differences from Llama",
    "tested shapes",
    "LoRA",
    "quantization",
    "TP",
    "captured",
)


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the families by the names of their models."""
    for family in sorted(FAMILIES, key=lambda each: each.models.lower()):
        shapes = shapes_of(family)
        decoders = [decoder_of(family, shape) for shape in shapes or [{}]]
        experts = ["experts"] * any(map(has_experts, decoders))
        latent = ["`kv_b_proj`"] * any(map(has_latent_attention, decoders))
        yield (
            family.models,
            f"`{family.architecture}`",
            family.traits,
            str(len(shapes) or "own tests"),
            all_but(experts + latent),
            all_but(latent),
            "yes" if all(map(is_divided, decoders)) else "no",
            "on a GPU" if latent else "native" if experts else "yes",
        )


def shapes_of(family: Family) -> list[dict[str, Any]]:
    """Return the tested shapes of a family, or of the one that it is another name of."""
    names = (each.architecture for each in FAMILIES if each.reader == family.reader)
    tested = [name for name in (family.architecture, *names) if name in CASES]
    return [case.options for case in CASES[tested[0]].values()] if tested else []


def decoder_of(family: Family, shape: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a shape; a family with tests of its own has sizes only."""
    config = {key: value for key, value in {**TINY_SIZES, **shape}.items() if value is not MISSING}
    return read_decoder_config(family.architecture, config)


def has_experts(decoder: DecoderConfig) -> bool:
    return any(not isinstance(layer.mlp, MLPConfig) for layer in decoder.layers)


def has_latent_attention(decoder: DecoderConfig) -> bool:
    return any(isinstance(layer.attention, MLAConfig) for layer in decoder.layers)


def is_divided(decoder: DecoderConfig) -> bool:
    """Return whether tensor parallelism divides the layers."""
    description = describe_decoder("", {}, decoder)
    return bool(description.sharded_sizes or description.expert_sizes)


def all_but(names: list[str]) -> str:
    return f"all but {', '.join(names)}" if names else "all"
