"""Options of compressed-tensors checkpoints: groups of layers, each with a scheme for its weights.

`targets` of a group are names of layers, regular expressions (`re:`, from the start of a name), or
classes, such as `Linear`. Of the groups that have a layer as a target, the one with its name is
likeliest, then the one with an expression, the first in the alphabet, then the one with its class,
which is `Linear`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.interfaces.weight_codes import (
    ATTENTION,
    E2M1,
    E4M3,
    HEAD,
    INTEGERS,
    MLP,
    WeightCodes,
)
from quire.layers.config_values import ConfigValues
from quire_quantizations.checkpoints.configs.fp8_config import Block, block_of
from quire_quantizations.checkpoints.configs.layer_names import spellings_of
from quire_quantizations.checkpoints.configs.values import group_size_of, refused, values_of

METHOD = "compressed-tensors"
PACK_QUANTIZED = "pack-quantized"
FORMATS = (
    "dense", PACK_QUANTIZED, "int-quantized", "float-quantized", "naive-quantized",
    "mixed-precision", "mxfp4-pack-quantized", "nvfp4-pack-quantized", "mxfp8-quantized",
)  # fmt: skip
TENSOR, CHANNEL, BLOCK, GROUPS = "tensor", "channel", "block", ("group", "tensor_group")
STRATEGIES = (TENSOR, CHANNEL, BLOCK, *GROUPS)
INTEGER_BITS, FLOATS = range(2, 9), {4: E2M1, 8: E4M3}
ORDERS = {"group": True, "dynamic": True, "weight": False, "static": False}  # by actorder
PATTERN, LINEAR = "re:", "Linear"
NO_TARGET = 3  # rank of a group that does not have the layer

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the weights of a group of layers are quantized.

    Attributes:
        name: Name of the group in `config_groups`.
        targets: Layers.
        is_packed: Whether integers are packed.
        is_float: Whether codes are floats of 4 or 8 bits.
        num_bits: Bits of a code.
        strategy: What shares a scale: "tensor", "channel" (an output), "group" or "tensor_group"
            (inputs of an output), or "block".
        group_size: Number of inputs of a group.
        block: Rows and columns of a block.
        is_symmetric: Whether there are no zero points.
        is_ordered: Whether inputs have groups in the order of their activations.
        has_int8_inputs: Whether inputs are quantized to 8-bit integers as a product begins.
    """

    name: str
    targets: tuple[str, ...]
    is_packed: bool
    is_float: bool
    num_bits: int
    strategy: str
    group_size: int | None = None
    block: Block | None = None
    is_symmetric: bool = True
    is_ordered: bool = False
    has_int8_inputs: bool = False

    def block_of(self, shape: Shape, scales: Shape) -> Block | None:
        """Return the rows and columns that share a scale.

        Args:
            shape: Shape of the weight, `[N, K]`.
            scales: Shape of its scales.

        Returns:
            The block; None: weights of this scheme have no such scales.
        """
        outputs, inputs = shape
        sizes = {TENSOR: (outputs, inputs), CHANNEL: (1, inputs), BLOCK: self.block}
        rows, columns = sizes.get(self.strategy) or (1, self.group_size or inputs)
        counts = (-(-outputs // max(rows, 1)), -(-inputs // max(columns, 1)))
        if scales == counts or _without_ones(scales) == _without_ones(counts):
            return rows, columns
        return None

    @property
    def codes(self) -> WeightCodes:
        """The codes of its weights."""
        columns = self.block[1] if self.block else self.group_size
        if self.is_float:
            return WeightCodes(FLOATS[self.num_bits], self.num_bits, columns)
        num_bits = self.num_bits if self.is_packed else 8
        return WeightCodes(INTEGERS, num_bits, columns, has_offsets=not self.is_symmetric)

    def __str__(self) -> str:
        size = self.block if self.strategy == BLOCK else self.group_size
        of = "" if size is None else f" of {list(size) if isinstance(size, tuple) else size}"
        kind = "float" if self.is_float else "int"
        return f"config_groups.{self.name} (num_bits {self.num_bits}, {kind}, {self.strategy}{of})"


@dataclass(frozen=True, slots=True)
class CompressedTensorsConfig:
    """Options of a checkpoint, checked.

    Attributes:
        schemes: Schemes of the groups of layers whose weights are quantized.
        ignored: Layers that are not quantized.
        has_float8_cache: Whether scales of keys and values are those of a float8 KV cache.
    """

    schemes: tuple[Scheme, ...]
    ignored: tuple[str, ...] = ()
    has_float8_cache: bool = True

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> CompressedTensorsConfig:
        """Read the options.

        Raises:
            RefusedError: A format, or a way in which weights are quantized, is not supported.
            UnsupportedModelError: An option is of another type than it must be.
        """
        values = values_of(config, METHOD)
        layout = _format(values, "")
        for key, inner in (("transform_config", "config_groups"), ("sparsity_config", "format")):
            if values.nested(key).config.get(inner) not in (None, {}, "dense"):
                raise refused(values, key, "no such option")
        ignored = check_patterns(values, "ignore")
        groups = values.nested("config_groups")
        found = [_scheme(groups.nested(name), name, layout) for name in groups.config]
        schemes = tuple(scheme for scheme in found if scheme is not None)
        return cls(schemes, ignored, _has_float8(values))

    def schemes_of(
        self, module: str, *, is_float: bool, num_bits: int | None = None
    ) -> list[Scheme]:
        """Return the schemes that a layer may have, the likeliest by its name first.

        Args:
            module: Module path of the layer.
            is_float: Whether its codes are floats.
            num_bits: Bits of a code; None: any.
        """
        able = [
            scheme
            for scheme in self.schemes
            if scheme.is_float == is_float and num_bits in (None, scheme.num_bits)
        ]
        return sorted(able, key=lambda scheme: _rank(scheme, module))

    @property
    def codes(self) -> tuple[WeightCodes, ...]:
        """The codes of each group of layers."""
        found: dict[str, set[str]] = {scheme.name: set() for scheme in self.schemes}
        for part in (ATTENTION, MLP, HEAD):
            for spellings in spellings_of(part):
                scheme = self._scheme_of(spellings)
                if scheme is not None:
                    found[scheme.name].add(part)
        return tuple(
            replace(scheme.codes, parts=frozenset(found[scheme.name])) for scheme in self.schemes
        )

    def _scheme_of(self, spellings: tuple[str, ...]) -> Scheme | None:
        """Return the likeliest scheme of a layer with one of these names; None: it has none."""
        names = [(target, name) for target in self.ignored for name in spellings]
        if any(_rank_of(target, name)[0] < NO_TARGET for target, name in names):
            return None
        ranked = [(_rank(one, name), one) for one in self.schemes for name in spellings]
        rank, scheme = min(ranked, key=lambda each: each[0], default=((NO_TARGET, ""), None))
        return scheme if rank[0] < NO_TARGET else None

    def __str__(self) -> str:
        return " or ".join(map(str, self.schemes)) or "config_groups, which have no weights"


def describe(config: Mapping[str, Any]) -> tuple[WeightCodes, ...]:
    """Check the options, and return the codes that they stand for."""
    return CompressedTensorsConfig.read(config).codes


def check_patterns(values: ConfigValues, key: str) -> tuple[str, ...]:
    """Return names and expressions.

    Raises:
        UnsupportedModelError: They are something else.
    """
    names = values.names(key)
    for name in names:
        try:
            re.compile(name.removeprefix(PATTERN) if name.startswith(PATTERN) else "")
        except re.error as error:
            wanted = f"a list of names, or of regular expressions after {PATTERN!r} ({error})"
            raise values.wrong(key, name, wanted) from error
    return names


def _format(values: ConfigValues, default: str) -> str:
    """Return a format.

    Raises:
        RefusedError: It is not supported.
    """
    named = values.text("format", default)
    if named and named not in FORMATS:
        raise refused(values, "format", ", ".join(FORMATS))
    return named


def _scheme(group: ConfigValues, name: str, layout: str) -> Scheme | None:
    """Return the scheme of a group of layers; None: their weights are not quantized."""
    layout = _format(group, layout)
    targets = check_patterns(group, "targets")
    if not group.mapping("weights"):
        return None
    weights = group.nested("weights")
    kind = weights.text("type", "int").lower()
    if kind not in ("int", "float"):
        raise refused(weights, "type", "int or float")
    num_bits = weights.whole("num_bits", 8)
    if num_bits not in (FLOATS if kind == "float" else INTEGER_BITS):
        raise refused(weights, "num_bits", "2 to 8 bits of integers, and 4 or 8 of floats")
    group_size, block = group_size_of(weights), _block(weights)
    return Scheme(
        name,
        targets,
        is_packed=PACK_QUANTIZED in layout or layout in ("", "mixed-precision"),
        is_float=kind == "float",
        num_bits=num_bits,
        strategy=_strategy(weights, group_size, block),
        group_size=group_size,
        block=block,
        is_symmetric=weights.flag("symmetric", True),
        is_ordered=_is_ordered(weights),
        has_int8_inputs=_has_int8_inputs(group),
    )


def _strategy(weights: ConfigValues, group_size: int | None, block: Block | None) -> str:
    """Return what shares a scale, by default what the sizes say.

    Raises:
        RefusedError: It is not supported.
        UnsupportedModelError: The sizes that it needs are missing, or others are there.
    """
    implied = CHANNEL if weights.has("group_size") else TENSOR
    implied = GROUPS[0] if group_size is not None else implied
    strategy = weights.text("strategy", implied if block is None else BLOCK).lower()
    if strategy not in STRATEGIES:
        raise refused(weights, "strategy", ", ".join(STRATEGIES))
    if (strategy in GROUPS) != (group_size is not None):
        needed = "a whole number above 0" if strategy in GROUPS else "null or -1"
        raise weights.wrong(
            "group_size", weights.config.get("group_size"), f"{needed} with strategy {strategy!r}"
        )
    if (strategy == BLOCK) != (block is not None):
        needed = "rows and columns" if strategy == BLOCK else "null"
        raise weights.wrong(
            "block_structure", block and list(block), f"{needed} with strategy {strategy!r}"
        )
    return strategy


def _has_int8_inputs(group: ConfigValues) -> bool:
    """Return whether the inputs of a group of layers are quantized to 8-bit integers."""
    if not group.mapping("input_activations"):
        return False
    inputs = group.nested("input_activations")
    return inputs.text("type", "int").lower() == "int" and inputs.whole("num_bits", 8) == 8


def _is_ordered(weights: ConfigValues) -> bool:
    """Return whether weights have the groups of their inputs beside them.

    Raises:
        RefusedError: The order is unknown.
        UnsupportedModelError: It is of another type than it must be.
    """
    if isinstance(weights.config.get("actorder"), bool):
        return weights.flag("actorder")
    order = weights.text("actorder", "static").lower()
    if order not in ORDERS:
        raise refused(weights, "actorder", ", ".join(ORDERS))
    return ORDERS[order]


def _block(weights: ConfigValues) -> Block | None:
    """Return the block, which old files have as text: "128x128"."""
    text = weights.config.get("block_structure")
    if isinstance(text, str) and re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", text):
        weights = weights.with_values({"block_structure": [int(size) for size in text.split("x")]})
    return block_of(weights, "block_structure")


def _has_float8(values: ConfigValues) -> bool:
    """Return whether the scheme of the KV cache, if there is one, is one scale for float8."""
    if not values.mapping("kv_cache_scheme"):
        return True
    cache = values.nested("kv_cache_scheme")
    named = (cache.text("type", "int").lower(), cache.whole("num_bits", 8))
    is_one = cache.text("strategy", TENSOR).lower() == TENSOR and cache.flag("symmetric", True)
    return named == ("float", 8) and is_one


def _rank(scheme: Scheme, module: str) -> tuple[int, str]:
    """Return how unlikely a scheme is for a layer, by the targets of its group."""
    return min((_rank_of(target, module) for target in scheme.targets), default=(NO_TARGET, ""))


def _rank_of(target: str, module: str) -> tuple[int, str]:
    if target == module:
        return 0, target
    if target.startswith(PATTERN):
        is_match = re.match(target.removeprefix(PATTERN), module)
        return (1 if is_match else NO_TARGET), target
    return (2 if target == LINEAR else NO_TARGET), target


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)
