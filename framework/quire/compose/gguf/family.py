"""What an architecture of GGUF files is: its model class, its metadata and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from quire.compose.gguf.model_values import ModelValues
from quire.compose.gguf.tensor_names import TensorNames

WINDOW, EXPERT_COUNT = "attention.sliding_window", "expert_count"
WIDTH, KV_HEADS = "feed_forward_length", "attention.head_count_kv"

Derive = Callable[[Mapping[str, Any], ModelValues], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Key:
    """A value of metadata that a family has.

    Attributes:
        name: Its key in the config.
        kind: "count" from 1, "whole" from 0, "number" above 0, or "flag".
        is_optional: Whether files may lack it, or have 0 in place of none.
    """

    name: str
    kind: Literal["count", "whole", "number", "flag"] = "count"
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Epsilon:
    """Key of the epsilon of the norms, in the metadata and in the config."""

    key: str = "attention.layer_norm_rms_epsilon"
    name: str = "rms_norm_eps"


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture of GGUF.

    Attributes:
        name: Its name in `general.architecture`, which the keys of its metadata begin with.
        architecture: Name of the model class.
        model_type: Model type in config.json.
        keys: Metadata beyond that of Llama.
        tensors: Names of tensors that are not in `TENSORS`, or mean something else.
        flags: Keys of the config that say whether there is a tensor, and this tensor.
        constants: Values of the config that no file has, such as the activation.
        derive: Function from the config, and from what the file says, to further values of it.
        epsilon: Key of the epsilon of the norms.
        usual: Further keys of metadata, and the only value of each that the family has.
        ignored: Keys that change nothing for text.
        rope: Values of a scaled rotary embedding that no file has.
        rope_keys: Further values of a scaled rotary embedding, by their keys in the metadata.
        has_own_ropes: Whether layers with a window have a rotary embedding of their own, and the
            others one over a part of the wavelengths, which a tensor marks.
        by_layer: Keys that may have a number for each layer; the config has that of the first.
        is_latent: Whether attention is latent, with sizes of heads of its own.
        window_period: Number of layers of which the last one has full attention, and the others a
            sliding window; None: the family has no such layers.
        is_paired: Whether rows of queries and keys are in rotary pairs.
        is_partly_rotated: Whether a part of each head may be rotated.
        norm_offset: Number that is added to the weights of norms in the file.
        variants: Families that a file is of if it has a value for a key: any, or the usual one.
    """

    name: str
    architecture: str
    model_type: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    tensors: TensorNames = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    derive: Derive = lambda *_: {}
    epsilon: Epsilon = Epsilon()
    usual: Mapping[str, Any] = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    rope: Mapping[str, Any] = field(default_factory=dict)
    rope_keys: Mapping[str, str] = field(default_factory=dict)
    has_own_ropes: bool = False
    by_layer: frozenset[str] = frozenset()
    is_latent: bool = False
    window_period: int | None = None
    is_paired: bool = False
    is_partly_rotated: bool = False
    norm_offset: float = 0.0
    variants: Mapping[str, Family] = field(default_factory=dict)
