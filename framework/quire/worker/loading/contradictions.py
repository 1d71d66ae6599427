"""Contradictions between a checkpoint's config and its tensors, with the values in question."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from quire.errors import CheckpointCorruptError
from quire.interfaces.checkpoint_tensors import CheckpointTensor
from quire.worker.loading.checkpoint_files import listed
from quire.worker.loading.checkpoint_words import CheckpointWords

MAX_SHAPES = 3
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
QUANTIZED_NAMES = {  # ends of the names of tensors that only quantized checkpoints have
    ".qweight": "gptq or awq",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "compressed-tensors or fp8",
    ".weight_scale_inv": "fp8",
    ".weight.absmax": "bitsandbytes",
    ".SCB": "bitsandbytes",
    "_blocks": "mxfp4",
}
INTEGERS = frozenset({"I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "BOOL"})
NUMBERED = re.compile(r"([^\d]*\.)(\d{1,9})\..+")

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Mismatch:
    tensor: CheckpointTensor
    expected: Shape

    def described(self, words: CheckpointWords) -> str:
        """Return the tensor with both shapes; entries of a stack have one description."""
        stored = self.tensor.stored[0]
        what = "shape" if stored.index is None else "entries of shape"
        return (
            f"tensor {words.tensor(self.tensor.name)} in {stored.file.name} has {what} "
            f"{list(self.tensor.shape)}, but {words.config} requires {list(self.expected)}"
        )


def check_shapes(
    tensors: Iterable[tuple[CheckpointTensor, Shape]],
    config: Mapping[str, Any],
    words: CheckpointWords,
) -> None:
    """Check that tensors have the shapes that the config requires.

    Args:
        tensors: Tensors, each with its required shape.
        config: The checkpoint's config.
        words: What errors call the parts of the checkpoint.

    Raises:
        CheckpointCorruptError: Some do not. The message names values of the config that explain it.
    """
    fitting: set[int] = set()  # sizes of dimensions
    wrong: list[_Mismatch] = []
    for tensor, shape in tensors:
        if _fits(tensor.shape, shape):
            fitting.update(shape)
        else:
            wrong.append(_Mismatch(tensor, shape))
    if not wrong:
        return
    described = list(dict.fromkeys(mismatch.described(words) for mismatch in wrong))
    more = f"; and {len(described) - MAX_SHAPES} more" if len(described) > MAX_SHAPES else ""
    shown = "; ".join(described[:MAX_SHAPES])
    raise CheckpointCorruptError(shown + more + _suspects(wrong, fitting, config, words))


def check_dtypes(tensors: Iterable[CheckpointTensor], config: Mapping[str, Any]) -> None:
    """Check that weights which nothing decodes are of floating-point numbers.

    Args:
        tensors: Tensors that are loaded.
        config: The checkpoint's config.

    Raises:
        CheckpointCorruptError: One has integers, which are codes of a quantized weight.
    """
    for tensor in tensors:
        stored = tensor.stored[0]
        if tensor.compute is None and stored.dtype in INTEGERS:
            raise CheckpointCorruptError(
                f"tensor {stored.name} in {stored.file.name} has the dtype {stored.dtype}, and the "
                "model has floating-point numbers there. If they are codes of a quantized weight, "
                f"its scales are missing; quantization_config in config.json {_named(config)}: "
                "copy the checkpoint completely, or correct quant_method"
            )


def check_names(
    missing: Sequence[str],
    unexpected: Sequence[str],
    stored: Iterable[str],
    config: Mapping[str, Any],
    words: CheckpointWords,
) -> None:
    """Check that no tensors are missing or unexpected.

    Args:
        missing: Names of required tensors that the checkpoint lacks, as in its files.
        unexpected: Names of tensors that the model does not have, with explanations.
        stored: Names of all tensors of the checkpoint.
        config: The checkpoint's config.
        words: What errors call the parts of the checkpoint.

    Raises:
        CheckpointCorruptError: Some are.
    """
    complaints = []
    if missing:
        complaints.append(f"{len(missing)} tensors are missing: {listed(missing)}")
    if unexpected:
        complaints.append(f"{len(unexpected)} tensors are not in the model: {listed(unexpected)}")
    if complaints:
        reason = (
            _layer_count(missing, unexpected, stored, config, words)
            or _untied_head(missing, config)
            or _quantization(unexpected, config)
            or words.way_out
        )
        raise CheckpointCorruptError(
            f"{words.name} does not fit the model: " + "; ".join(complaints) + reason
        )


def _quantization(unexpected: Iterable[str], config: Mapping[str, Any]) -> str:
    """Name the quantization that unexpected tensors belong to, and what the config says of it."""
    for name in unexpected:
        bare = name.split(" ", 1)[0]  # an explanation may follow
        for end, methods in QUANTIZED_NAMES.items():
            if bare.endswith(end):
                return (
                    f". Tensors named *{end} are those of a checkpoint quantized by {methods}; "
                    f"quantization_config in config.json {_named(config)}: correct its quant_method"
                )
    return ""


def _named(config: Mapping[str, Any]) -> str:
    """Return what the config says of the quantization method, for people."""
    named = (config.get("quantization_config") or {}).get("quant_method")
    return f"names {named!r}" if named else "names none"


def _fits(shape: Shape, expected: Shape) -> bool:
    return shape == expected or (shape == (1,) and expected == ())  # scalars are stored as either


def _suspects(
    wrong: Sequence[_Mismatch],
    fitting: Set[int],
    config: Mapping[str, Any],
    words: CheckpointWords,
) -> str:
    """Name the config's values that wrong sizes are equal to, and what the tensors have instead.

    Sizes that other tensors confirm are left out.
    """
    suspects = {
        f"{words.key(key)} is {expected}, and the tensors have {given}"
        for mismatch in wrong
        for expected, given in zip(mismatch.expected, mismatch.tensor.shape, strict=False)
        for key in _keys_of(expected, mismatch.expected, config)
        if expected not in {given} | fitting
    }
    return f". In {words.config} {'; '.join(sorted(suspects))}" if suspects else ""


def _keys_of(size: int, shape: Shape, config: Mapping[str, Any]) -> list[str]:
    """Return the keys of a size; a matrix has several heads, so its size says nothing of one."""
    return [
        key
        for key, value in config.items()
        if type(value) is int and value == size and (key != "head_dim" or len(shape) == 1)
    ]


def _layer_count(
    missing: Sequence[str],
    unexpected: Sequence[str],
    stored: Iterable[str],
    config: Mapping[str, Any],
    words: CheckpointWords,
) -> str:
    """Explain names of layers that the checkpoint or the model lacks as a whole."""
    key = next((key for key in LAYER_COUNTS if isinstance(config.get(key), int)), None)
    if key is None:
        return ""
    given = _layers(stored)
    for prefix, layers in (_layers(missing) | _layers(unexpected)).items():
        own = given.get(prefix, set())
        is_whole = (missing and not layers & own) or (unexpected and min(layers) >= config[key])
        if own and is_whole and len(own) != config[key]:
            found = f"{words.key(key)} is {config[key]}, and the tensors have {len(own)} layers"
            return f". In {words.config} {found}"
    return ""


def _layers(names: Iterable[str]) -> dict[str, set[int]]:
    """Return the numbers of layers by the part of the names before them."""
    layers: dict[str, set[int]] = {}
    for name in names:
        if match := NUMBERED.fullmatch(name):
            layers.setdefault(match[1], set()).add(int(match[2]))
    return layers


def _untied_head(missing: Sequence[str], config: Mapping[str, Any]) -> str:
    """Explain a head that only a tied model can lack."""
    if list(missing) == ["lm_head.weight"] and config.get("tie_word_embeddings") is False:
        return (
            ". In config.json tie_word_embeddings is false; if the head is the embedding's matrix, "
            "set it to true"
        )
    return ""
