"""The config.json that the metadata and the tensors of a GGUF file stand for.

Values that are in no file of the architecture, such as the activation, are those of the family.
What the metadata sets beyond the known keys is refused: it may change what the model computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

from quire.compose.gguf.families import FAMILIES
from quire.compose.gguf.family import KV_HEADS, WIDTH, WINDOW, Family, Key
from quire.compose.gguf.header import GgufTensor, StoredArray
from quire.compose.gguf.model_values import ModelValues
from quire.compose.gguf.rope_values import OWN_ROPE_KEYS, SCALING_KEYS, rope_scaling
from quire.compose.gguf.split_files import GgufFiles
from quire.compose.gguf.weight_types import weight_types
from quire.errors import CheckpointCorruptError, UnsupportedModelError

EMBEDDING, HEAD, TOKENS = "token_embd.weight", "output.weight", "tokenizer.ggml.tokens"
QUANTIZATION = {"quant_method": "gguf"}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
QUANTIZED_DTYPE = "bfloat16"  # of nearly all models before they were quantized
DEFAULT_THETA = 10000.0
HEADS, NUM_LAYERS, DRAFT_LAYERS = "attention.head_count", "block_count", "nextn_predict_layers"
SIZES = {
    NUM_LAYERS: "num_hidden_layers",
    "embedding_length": "hidden_size",
    WIDTH: "intermediate_size",
    HEADS: "num_attention_heads",
    "context_length": "max_position_embeddings",
}
HEAD_SIZE, VALUE_SIZE = "attention.key_length", "attention.value_length"
THETA, ROTATED, PATTERN = (
    "rope.freq_base", "rope.dimension_count", "attention.sliding_window_pattern",
)  # fmt: skip
NAMES = SIZES | {
    KV_HEADS: "num_key_value_heads",
    HEAD_SIZE: "head_dim",
    THETA: "rope_theta",
    ROTATED: "partial_rotary_factor",
    WINDOW: "sliding_window",
    PATTERN: "layer_types",
}
USUAL = {  # values that change nothing, where not zero
    "attention.causal": True,
    "rope.scaling.yarn_ext_factor": 1.0,
}
NO_EFFECT = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"}
    | {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"}  # of the other norm
)
OTHER_LAYOUT = "use the model's files in the layout of Hugging Face"
KINDS = {  # of general.type, and what they are
    "mmproj": "the encoder of images or sound of a model; give the file of its text model",
    "adapter": "an adapter; give the file of its model, and the adapter in the layout of PEFT",
    "imatrix": "the statistics of a quantization; give the file of the model",
}


def config_of(files: GgufFiles) -> dict[str, Any]:
    """Return the config of a model.

    Raises:
        UnsupportedModelError: The architecture, or something that the metadata sets, is not
            supported.
        CheckpointCorruptError: A value is missing or wrong.
    """
    family = family_of(files)
    return _Reader(ModelValues(files, family.name), family).config()


def key_names(files: GgufFiles) -> Mapping[str, str]:
    """Return the keys of the metadata that keys of the config are made of."""
    family = family_of(files)
    names = NAMES | {key: ours.name for key, ours in family.keys.items()}
    names[family.epsilon.key] = family.epsilon.name
    return {ours: f"{family.name}.{key}" for key, ours in names.items()}


def family_of(files: GgufFiles) -> Family:
    """Return the family of a model.

    Raises:
        UnsupportedModelError: Files of its architecture are not read.
    """
    where = repr(str(files.first))
    kind, name = files.metadata.get("general.type"), files.metadata.get("general.architecture")
    if name == "clip":  # what files of encoders said before they had a type
        kind = "mmproj"
    if kind in KINDS:
        raise UnsupportedModelError(f"{where} is {KINDS[kind]}")
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"{where} has the architecture {_shown(name)} (general.architecture); of GGUF files "
            f"quire reads {', '.join(FAMILIES)}; {OTHER_LAYOUT}"
        )
    family = FAMILIES[name]
    for key, other in family.variants.items():
        value = files.metadata.get(f"{name}.{key}")
        if value and other.usual.get(key, value) == value:
            return other
    return family


class _Reader:
    """Reads the metadata of one model."""

    def __init__(self, values: ModelValues, family: Family) -> None:
        self._values = values
        self._family = family

    def config(self) -> dict[str, Any]:
        """Return the config."""
        self._check_known()
        family, values = self._family, self._values
        sizes = self._sizes()
        head_dim = values.count(
            HEAD_SIZE, max(1, sizes["hidden_size"] // sizes["num_attention_heads"])
        )
        rotary_dim = values.count(ROTATED) if family.is_latent else self._rotary_dim(head_dim)
        config = {
            "architectures": [family.architecture],
            "model_type": family.model_type,
            "hidden_act": "silu",
            **sizes,
            "num_key_value_heads": self._count(KV_HEADS, sizes["num_attention_heads"]),
            "head_dim": head_dim,
            "vocab_size": self._vocab_size(),
            family.epsilon.name: values.number(family.epsilon.key),
            "rope_theta": values.number(THETA, DEFAULT_THETA),
            "tie_word_embeddings": not values.has_tensor(HEAD),
            **{key: values.has_tensor(tensor) for key, tensor in family.flags.items()},
            **family.constants,
            **self._own_values(),
            **self._windows(sizes["num_hidden_layers"]),
            **rope_scaling(values, family, rotary_dim, sizes["max_position_embeddings"]),
            **_dtypes(values.files.tensors),
        }
        if family.is_partly_rotated:
            config["partial_rotary_factor"] = rotary_dim / head_dim
        return {**config, **family.derive(config, values)}

    def _check_known(self) -> None:
        """Check that the metadata sets nothing of the model that is not read."""
        family, values = self._family, self._values
        known = {*SIZES, *family.keys, family.epsilon.key, *SCALING_KEYS, *NO_EFFECT}
        known |= {KV_HEADS, HEAD_SIZE, VALUE_SIZE, THETA, ROTATED}
        known |= {*family.ignored, *family.rope_keys}
        known |= {WINDOW, PATTERN} if family.window_period else set()
        known |= OWN_ROPE_KEYS if family.has_own_ropes else set()
        usual, prefix = {**USUAL, **family.usual}, values.key("")
        unknown = [
            whole
            for whole, value in values.files.metadata.items()
            if whole.startswith(prefix)
            and (key := whole.removeprefix(prefix)) not in known
            and value != usual.get(key, 0)
        ]
        if unknown:
            raise UnsupportedModelError(
                f"{values.where} sets {', '.join(unknown)}, which quire does not read from GGUF "
                f"files; {OTHER_LAYOUT}"
            )

    def _sizes(self) -> dict[str, int]:
        """Return the sizes that all families have, without layers that only predict drafts."""
        values = self._values
        sizes = {ours: self._count(key) for key, ours in SIZES.items()}
        num_layers, num_tensors = sizes["num_hidden_layers"], len(values.files.tensors)
        if num_layers > num_tensors:  # before anything is made for each of them
            raise CheckpointCorruptError(
                f"{values.where} claims {num_layers} layers ({values.key(NUM_LAYERS)}), and has "
                f"{num_tensors} tensors"
            )
        if DRAFT_LAYERS in self._family.keys:
            num_drafts = values.whole(DRAFT_LAYERS, 0)
            if num_drafts >= num_layers:
                raise values.wrong(DRAFT_LAYERS, num_drafts, f"less than the {num_layers} layers")
            sizes["num_hidden_layers"] -= num_drafts
        return sizes

    def _count(self, key: str, default: int | None = None) -> int:
        """Return a whole number from 1, or the first of those of the layers."""
        numbers = self._values.by_layer(key) if key in self._family.by_layer else None
        return self._values.count(key, default) if numbers is None else numbers[0]

    def _rotary_dim(self, head_dim: int) -> int:
        """Return the number of elements of a head that are rotated.

        Raises:
            UnsupportedModelError: It is a part, in a family without such models; or values have
                another size than keys.
        """
        values = self._values
        for key in (VALUE_SIZE, ROTATED):
            other = values.count(key, head_dim)
            is_part = key == ROTATED and self._family.is_partly_rotated and other < head_dim
            if other != head_dim and not is_part:
                raise UnsupportedModelError(
                    f"{values.where} has a {values.key(key)} of {other} with heads of {head_dim}; "
                    "quire reads GGUF files where they are equal"
                )
        return values.count(ROTATED, head_dim)

    def _vocab_size(self) -> int:
        values = self._values
        embedding, tokens = values.tensor(EMBEDDING), values.files.metadata.get(TOKENS)
        if len(embedding.shape) != 2:
            raise CheckpointCorruptError(
                f"tensor {EMBEDDING} in {values.where} has shape {list(embedding.shape)}, and must "
                "be a matrix"
            )
        num_rows = embedding.shape[0]
        if isinstance(tokens, StoredArray) and tokens.count > num_rows:
            raise CheckpointCorruptError(
                f"{values.where} has {tokens.count} tokens ({TOKENS}), but tensor {EMBEDDING} has "
                f"rows for {num_rows}; convert the model again with its own tokenizer"
            )
        return num_rows

    def _own_values(self) -> dict[str, Any]:
        """Return the values of the family's own keys."""
        found = ((ours.name, self._own(key, ours)) for key, ours in self._family.keys.items())
        return {name: value for name, value in found if value is not None}

    def _own(self, key: str, ours: Key) -> Any:
        if ours.is_optional and not self._values.get(key):
            return False if self._values.get(key) is False else None
        readers = {
            "count": self._values.count,
            "whole": self._values.whole,
            "number": self._values.number,
            "flag": self._values.flag,
        }
        return readers[ours.kind](key)

    def _windows(self, num_layers: int) -> dict[str, Any]:
        """Return the sliding window and the type of each layer."""
        period = self._family.window_period
        if period is None:
            return {}
        window, pattern = self._values.count(WINDOW), self._values.get(PATTERN)
        if isinstance(pattern, StoredArray):
            has_window = pattern.read()
            if len(has_window) < num_layers or not all(type(each) is bool for each in has_window):
                what = f"a truth value for each of the {num_layers} layers"
                raise self._values.wrong(PATTERN, pattern, what)
        else:
            period = self._values.count(PATTERN, period)
            has_window = [(layer + 1) % period != 0 for layer in range(num_layers)]
        kinds = ("full_attention", "sliding_attention")
        types = [kinds[is_sliding] for is_sliding in has_window[:num_layers]]
        return {"sliding_window": window, "layer_types": types}


def _dtypes(tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    """Return the dtype of the weights, and how they are quantized, if some are."""
    sizes = Counter[str]()
    for tensor in tensors.values():
        sizes[tensor.type.name] += prod(tensor.shape)
        if tensor.type.is_quantized:
            own = QUANTIZATION | {"weight_types": weight_types(tensors)}
            return {"torch_dtype": QUANTIZED_DTYPE, "quantization_config": own}
    (name, _), *_ = sizes.most_common(1)
    return {"torch_dtype": DTYPES[name]}


def _shown(name: Any) -> str:
    return "an array" if isinstance(name, StoredArray) else f"{name!r:.80}"
