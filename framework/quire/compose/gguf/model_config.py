"""The config.json that the metadata and the tensors of a GGUF file stand for.

Values that are in no file of the architecture, such as the activation, are those of the family.
What the metadata sets beyond the known keys is refused: it may change what the model computes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from quire.compose.gguf.header import GgufTensor
from quire.compose.gguf.split_files import GgufFiles
from quire.errors import CheckpointCorruptError, UnsupportedModelError

EMBEDDING, HEAD, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"
QUANTIZATION = {"quant_method": "gguf"}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
QUANTIZED_DTYPE = "bfloat16"  # of nearly all models before they were quantized
DEFAULT_THETA = 10000.0
SIZES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
KV_HEADS, HEAD_SIZE, VALUE_SIZE = (
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
)  # fmt: skip
EPSILON, THETA, ROTATED = (
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count",
)  # fmt: skip
SCALING, FACTOR, ORIGINAL = (
    "rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length",
)  # fmt: skip
YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}
USUAL = {"attention.causal": True}  # values of switches that change nothing, where not zero
NO_EFFECT = frozenset(
    {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "pooling_type"}
)


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture of GGUF is called elsewhere.

    Attributes:
        architecture: Name of the model class.
        model_type: Model type in config.json.
        constants: Further values of the config.
    """

    architecture: str
    model_type: str
    constants: Mapping[str, Any]


FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama", {}),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2", {"use_sliding_window": False}),
    "qwen3": _Family("Qwen3ForCausalLM", "qwen3", {"use_sliding_window": False}),
}


def config_of(files: GgufFiles) -> dict[str, Any]:
    """Return the config of a model.

    Raises:
        UnsupportedModelError: The architecture, or something that the metadata sets, is not
            supported.
        CheckpointCorruptError: A value is missing or wrong.
    """
    return _Reader(files).config()


class _Reader:
    """Reads the metadata of one model."""

    def __init__(self, files: GgufFiles) -> None:
        self._files = files
        self._name = self._architecture()
        self._family = FAMILIES[self._name]

    def config(self) -> dict[str, Any]:
        """Return the config."""
        self._check_known()
        sizes = {ours: self._count(key) for key, ours in SIZES.items()}
        self._check_layers(sizes["num_hidden_layers"])
        head_dim = self._head_dim(sizes["hidden_size"], sizes["num_attention_heads"])
        return {
            "architectures": [self._family.architecture],
            "model_type": self._family.model_type,
            "hidden_act": "silu",
            **sizes,
            "num_key_value_heads": self._count(KV_HEADS, sizes["num_attention_heads"]),
            "head_dim": head_dim,
            "vocab_size": self._vocab_size(),
            "rms_norm_eps": self._positive(EPSILON),
            "rope_theta": self._positive(THETA, DEFAULT_THETA),
            "tie_word_embeddings": HEAD not in self._files.tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._files.tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._files.tensors,
            **self._family.constants,
            **self._rope(head_dim, sizes["max_position_embeddings"]),
            **_dtypes(self._files.tensors.values()),
        }

    def _architecture(self) -> str:
        name = self._files.metadata.get("general.architecture")
        if name not in FAMILIES:
            raise UnsupportedModelError(
                f"{self._where} has the architecture {name!r}; of GGUF files quire reads "
                f"{', '.join(FAMILIES)}. Use the model's files in the layout of Hugging Face"
            )
        return str(name)

    def _check_known(self) -> None:
        """Check that the metadata sets nothing of the model that is not read."""
        scaling = {SCALING, FACTOR, ORIGINAL, *YARN}
        known = {*SIZES, KV_HEADS, HEAD_SIZE, VALUE_SIZE, EPSILON, THETA, ROTATED} | scaling
        prefix = f"{self._name}."
        unknown = [
            key
            for key, value in self._files.metadata.items()
            if key.startswith(prefix)
            and key.removeprefix(prefix) not in known | NO_EFFECT
            and value != USUAL.get(key.removeprefix(prefix), 0)
        ]
        if unknown:
            raise UnsupportedModelError(
                f"{self._where} sets {', '.join(unknown)}, which quire does not read from GGUF "
                "files; use the model's files in the layout of Hugging Face"
            )

    def _check_layers(self, num_layers: int) -> None:
        """Check that there may be so many layers, before anything is made for each."""
        if num_layers > len(self._files.tensors):
            raise CheckpointCorruptError(
                f"{self._where} claims {num_layers} layers ({self._name}.block_count), and has "
                f"{len(self._files.tensors)} tensors"
            )

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        head_dim = self._count(HEAD_SIZE, max(1, hidden_size // num_heads))
        for key in (VALUE_SIZE, ROTATED):
            other = self._count(key, head_dim)
            if other != head_dim:
                raise UnsupportedModelError(
                    f"{self._where} has a {self._name}.{key} of {other} with heads of {head_dim}; "
                    "quire reads GGUF files where they are equal"
                )
        return head_dim

    def _vocab_size(self) -> int:
        embedding = self._tensor(EMBEDDING)
        if len(embedding.shape) != 2:
            raise CheckpointCorruptError(
                f"tensor {EMBEDDING} in {self._where} has shape {list(embedding.shape)}, and must "
                "be a matrix"
            )
        return embedding.shape[0]

    def _rope(self, head_dim: int, max_len: int) -> dict[str, Any]:
        """Return the scaling of the rotary embedding."""
        kind = self._get(SCALING) or "none"
        if ROPE_FACTORS in self._files.tensors:
            return {"rope_scaling": self._factors(kind, head_dim, max_len)}
        if kind == "none":
            return {}
        scaling: dict[str, Any] = {"rope_type": kind, "factor": self._positive(FACTOR)}
        if kind == "yarn":
            scaling["original_max_position_embeddings"] = self._count(ORIGINAL)
            scaling |= {ours: self._positive(key) for key, ours in YARN.items() if self._get(key)}
        elif kind != "linear":
            raise UnsupportedModelError(
                f"{self._where} has a {self._name}.{SCALING} of {kind!r}; quire reads linear and "
                "yarn, and factors in a tensor"
            )
        return {"rope_scaling": scaling}

    def _factors(self, kind: str, head_dim: int, max_len: int) -> dict[str, Any]:
        """Return the scaling by a factor for each wavelength, which Llama 3.1 and later have."""
        tensor = self._tensor(ROPE_FACTORS)
        if kind != "none" or tensor.shape != (head_dim // 2,) or tensor.type.name != "F32":
            raise UnsupportedModelError(
                f"tensor {ROPE_FACTORS} in {self._where} has shape {list(tensor.shape)} and type "
                f"{tensor.type.name} beside a {self._name}.{SCALING} of {kind!r}; quire reads "
                f"{head_dim // 2} factors of type F32 without any other scaling"
            )
        with tensor.file.open("rb") as stream:
            stream.seek(tensor.offset)
            factors = struct.unpack(f"<{head_dim // 2}f", stream.read(tensor.num_bytes))
        return {
            "rope_type": "longrope",
            "short_factor": list(factors),
            "long_factor": list(factors),
            "original_max_position_embeddings": max_len,
            "attention_factor": 1.0,
        }

    def _get(self, key: str) -> Any:
        return self._files.metadata.get(f"{self._name}.{key}")

    def _count(self, key: str, default: int | None = None) -> int:
        found = self._get(key)
        if found is None and default is not None:
            return default
        if type(found) is not int or found < 1:
            raise self._wrong(key, found, "a whole number from 1")
        return found

    def _positive(self, key: str, default: float | None = None) -> float:
        found = self._get(key)
        if found is None and default is not None:
            return default
        if type(found) not in (int, float) or not 0 < found < float("inf"):
            raise self._wrong(key, found, "a number above 0")
        return _shortest(float(found))

    def _wrong(self, key: str, found: Any, what: str) -> CheckpointCorruptError:
        name = f"{self._name}.{key}"
        if found is None:
            return CheckpointCorruptError(f"{self._where} lacks {name} in its metadata")
        shown = repr(found) if isinstance(found, int | float | str) else "an array"
        return CheckpointCorruptError(f"{name} in {self._where} must be {what}, got {shown:.80}")

    def _tensor(self, name: str) -> GgufTensor:
        if name not in self._files.tensors:
            raise CheckpointCorruptError(f"{self._where} lacks the tensor {name}")
        return self._files.tensors[name]

    @property
    def _where(self) -> str:
        return repr(str(self._files.first))


def _dtypes(tensors: Iterable[GgufTensor]) -> dict[str, Any]:
    """Return the dtype of the weights, and whether some are quantized."""
    sizes = Counter[str]()
    for tensor in tensors:
        sizes[tensor.type.name] += prod(tensor.shape)
        if tensor.type.is_quantized:
            return {"torch_dtype": QUANTIZED_DTYPE, "quantization_config": QUANTIZATION}
    (name, _), *_ = sizes.most_common(1)
    return {"torch_dtype": DTYPES[name]}


def _shortest(number: float) -> float:
    """Return the decimal number that a float32 was made of, such as 1e-06."""
    short = float(f"{number:.7g}")
    try:
        return short if struct.pack("<f", short) == struct.pack("<f", number) else number
    except OverflowError:
        return number
