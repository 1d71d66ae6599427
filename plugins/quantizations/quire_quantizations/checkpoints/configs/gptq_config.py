"""Options of GPTQ checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.interfaces.weight_codes import HEAD, IN_LAYERS, INTEGERS, WeightCodes
from quire.layers.config_values import ConfigValues
from quire_quantizations.checkpoints.configs.layer_names import spellings_of
from quire_quantizations.checkpoints.configs.values import group_size_of, refused, values_of

LESS_ONE, AS_THEY_ARE = "gptq", "gptq_v2"  # values of checkpoint_format
BITS = (2, 3, 4, 8)  # the others are packed in planes
WORDS = "int32"
EXCLUDED, INCLUDED = "-:", "+:"  # before a pattern of `dynamic`


@dataclass(frozen=True, slots=True)
class GPTQConfig:
    """Options of a checkpoint, checked.

    Attributes:
        bits: Bits of a code, for layers whose tensors do not tell it.
        group_size: Number of inputs that share a scale; None: all inputs of an output.
        checkpoint_format: Convention of zero points.
        is_symmetric: Whether zero points are in the middle of the codes; None: it is not said.
        is_ordered: Whether inputs have groups in the order of their activations.
        has_head: Whether the LM head is quantized.
        dynamic: Other options of layers, by a pattern of their names.
    """

    bits: int
    group_size: int | None
    checkpoint_format: str
    is_symmetric: bool | None = None
    is_ordered: bool = False
    has_head: bool = False
    dynamic: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, config: Mapping[str, Any], method: str = "gptq") -> GPTQConfig:
        """Read the options.

        Raises:
            RefusedError: The format or the number of bits is not supported.
            UnsupportedModelError: An option is of another type than it must be.
        """
        values = values_of(config, method)
        key = "format" if config.get("checkpoint_format") is None else "checkpoint_format"
        named = values.text(key, LESS_ONE)
        if named not in (LESS_ONE, AS_THEY_ARE):
            raise refused(values, key, f"{LESS_ONE} or {AS_THEY_ARE}")
        if values.flag("is_marlin_format", False):
            raise refused(values, "is_marlin_format", "false")
        if values.text("pack_dtype", WORDS) != WORDS:
            raise refused(values, "pack_dtype", WORDS)
        is_symmetric = values.flag("sym", False) if values.has("sym") else None
        return cls(
            _bits_of(values),
            group_size_of(values),
            named,
            is_symmetric,
            is_ordered=values.flag("desc_act", False),
            has_head=values.flag("lm_head", False),
            dynamic=_dynamic(values),
        )

    def option(self, module: str, key: str, default: Any) -> Any:
        """Return an option of one layer, which `dynamic` may set."""
        _, options = self._dynamic_of(module)
        return options.get(key, default)

    @property
    def codes(self) -> tuple[WeightCodes, ...]:
        """The codes of each part of the model, as `dynamic` has them."""
        found: dict[WeightCodes, set[str]] = {}
        for part in (*sorted(IN_LAYERS), *([HEAD] if self.has_head else [])):
            for spellings in spellings_of(part):
                if (codes := self._codes_of(spellings)) is not None:
                    found.setdefault(codes, set()).add(part)
        return tuple(replace(codes, parts=frozenset(parts)) for codes, parts in found.items())

    def _codes_of(self, spellings: tuple[str, ...]) -> WeightCodes | None:
        """Return the codes of a layer with one of these names; None: it is not quantized."""
        matches = [self._dynamic_of(name) for name in spellings]
        pattern, options = next((match for match in matches if match[0]), ("", {}))
        if pattern.startswith(EXCLUDED):
            return None
        bits, size = options.get("bits"), options.get("group_size")
        return WeightCodes(
            INTEGERS,
            bits if bits in BITS else self.bits,
            size if type(size) is int and size > 0 else self.group_size,
            has_offsets=options.get("sym", self.is_symmetric) is False,
        )

    def _dynamic_of(self, module: str) -> tuple[str, Mapping[str, Any]]:
        """Return the first pattern of `dynamic` that a layer matches, and its options."""
        for pattern, options in self.dynamic.items():
            if re.match(pattern.removeprefix(EXCLUDED).removeprefix(INCLUDED), module):
                return pattern, options if isinstance(options, Mapping) else {}
        return "", {}


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    return GPTQConfig.read(config).codes


def check_options(values: ConfigValues) -> None:
    """Check the options of one layer.

    Raises:
        RefusedError: The number of bits is not supported.
        UnsupportedModelError: An option is of another type than it must be.
    """
    _bits_of(values, BITS[0])
    group_size_of(values)


def _bits_of(values: ConfigValues, default: int | None = None) -> int:
    """Return the bits of a code.

    Raises:
        RefusedError: The number is not supported.
    """
    bits = values.config.get("bits", default)
    if type(bits) is not int or bits not in BITS:
        raise refused(values, "bits", "2, 3, 4 or 8 bits")
    return bits


def _dynamic(values: ConfigValues) -> Mapping[str, Any]:
    """Return the options by layer, which are valid, as their patterns are.

    Raises:
        RefusedError: A number of bits is not supported.
        UnsupportedModelError: Options or patterns are of other types than they must be.
    """
    if values.config.get("dynamic") in (None, False):
        return {}
    dynamic = values.mapping("dynamic")
    for pattern, wrong in _wrong_patterns(dynamic):
        raise values.wrong("dynamic", pattern, f"an object of regular expressions ({wrong})")
    for pattern in dynamic:
        if not pattern.startswith(EXCLUDED):
            check_options(values.nested("dynamic").nested(pattern))
    return dynamic


def _wrong_patterns(patterns: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for pattern in patterns:
        try:
            re.compile(pattern.removeprefix(EXCLUDED).removeprefix(INCLUDED))
        except re.error as error:
            yield pattern, str(error)
