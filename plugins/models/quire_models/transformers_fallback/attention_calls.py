"""Record of how a transformers model calls its attention function, from a pass without data.

Each layer receives the mask that transformers makes for it. In this pass the masks are marked with
the function that they are made from, and this function is compared with the kinds of attention that
quire has. So a layer's window is what its mask says, whatever the layer's own arguments say.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from quire.errors import UnsupportedModelError

RECORDING = "quire_recording"

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True, slots=True)
class MaskKind:
    """A kind of causal attention.

    Attributes:
        name: Name of its KV-cache spec.
        size: Tokens of a window, the query included, or of a chunk; None for full attention.
    """

    name: str
    size: int | None = None

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Return whether a query at a position attends to the key at another."""
        is_before = key <= query
        if self.size is None:
            return is_before
        if self.name == "sliding_window":
            return is_before & (key > query - self.size)
        return is_before & (key // self.size == query // self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """Properties of one layer's attention.

    Attributes:
        path: Path of the attention module in the model.
        num_heads: Number of query heads.
        num_kv_heads: Number of key/value heads.
        key_dim: Elements of a query head and of a key head.
        value_dim: Elements of a value head.
        scale: Factor on the attention logits.
        soft_cap: Bound on the attention logits; None: no bound.
        mask: Kind of attention.
        sinks: Name of the module's parameter with the sinks; None: it has no sinks.
    """

    path: str
    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    soft_cap: float | None
    mask: MaskKind
    sinks: str | None

    @property
    def sinks_path(self) -> str | None:
        """Path of the parameter with the sinks."""
        return None if self.sinks is None else f"{self.path}.{self.sinks}"

    @property
    def head_dim(self) -> int:
        """Elements of a head in the cache, where keys and values have the same size."""
        return max(self.key_dim, self.value_dim)


@contextlib.contextmanager
def recorded_calls(model: PreTrainedModel) -> Iterator[list[AttentionCall]]:
    """Record the attention calls of the passes that run inside the context, on the meta device.

    The model's attention function is what it was after the context.
    """
    recorder = _Recorder(model)
    before = model.config._attn_implementation
    AttentionInterface.register(RECORDING, recorder.attend)
    AttentionMaskInterface.register(RECORDING, recorder.make_mask)
    model.config._attn_implementation = RECORDING
    try:
        yield recorder.calls
    finally:
        model.config._attn_implementation = before
        del AttentionInterface._global_mapping[RECORDING]
        del AttentionMaskInterface._global_mapping[RECORDING]


class _Recorder:
    """Attention function and mask function of the pass that is recorded."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.calls: list[AttentionCall] = []
        self._paths = {module: path for path, module in model.named_modules()}
        self._masks: dict[int, tuple[Tensor, MaskKind]] = {}  # by id, which the tensor keeps alive

    def make_mask(
        self,
        *,
        mask_function: MaskFunction,
        q_length: int,
        kv_length: int,
        local_size: int | None = None,
        **others: Any,
    ) -> Tensor:  # [1, 1, T, T]
        """Return a tensor that stands for a mask, as transformers' mask functions do."""
        del others
        mask = torch.empty(1, 1, q_length, kv_length, dtype=torch.bool, device="meta")
        self._masks[id(mask)] = mask, mask_kind(mask_function, local_size)
        return mask

    def attend(
        self,
        module: nn.Module,
        query: Tensor,  # [1, H, T, D]
        key: Tensor,  # [1, K, T, D]
        value: Tensor,  # [1, K, T, Dv]
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[Tensor, None]:
        """Record a call, and return a tensor of the output's shape."""
        del others
        path = self._paths[module]
        if is_causal is False or vars(module).get("is_causal") is False:
            raise UnsupportedModelError(f"attention in {path} is not causal")
        known = None if attention_mask is None else self._masks.get(id(attention_mask))
        if known is None:
            raise UnsupportedModelError(
                f"{path} attends with a mask of its own, and not with one that transformers makes "
                "for the layer's type"
            )
        self.calls.append(
            AttentionCall(
                path=path,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                key_dim=query.shape[-1],
                value_dim=value.shape[-1],
                scale=query.shape[-1] ** -0.5 if scaling is None else _number(scaling, path),
                soft_cap=softcap,
                mask=known[1],
                sinks=None if s_aux is None else _parameter_name(module, s_aux, path),
            )
        )
        shape = (query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
        return query.new_empty(shape), None


def mask_kind(mask_function: MaskFunction, local_size: int | None) -> MaskKind:
    """Return the kind of attention that a mask function of transformers stands for.

    Args:
        mask_function: Function of (batch, head, query, key) indices.
        local_size: Size that transformers names for local attention.

    Raises:
        UnsupportedModelError: It is none of the kinds that quire has.
    """
    kinds = [MaskKind("full_attention")]
    if local_size is not None:
        kinds = [
            MaskKind("sliding_window", local_size),
            MaskKind("chunked_local_attention", local_size),
        ]
    size = local_size or 256
    queries = _sample(size)[:, None]
    keys = torch.arange(3 * size + 4)[None]
    zero = torch.zeros((), dtype=torch.int64)
    try:
        found = torch.as_tensor(mask_function(zero, zero, queries, keys))
    except RuntimeError:
        if local_size is None:
            raise
        # Only the function of chunks reads a tensor of the pass, which has no data: the padding.
        return MaskKind("chunked_local_attention", local_size)
    allowed = found.to(torch.bool).expand(len(queries), keys.shape[1])
    for kind in kinds:
        if torch.equal(allowed, kind.allows(queries, keys)):
            return kind
    raise UnsupportedModelError(
        "it has attention that is neither causal over the whole context, nor over a window, nor "
        "over chunks"
    )


def _sample(size: int) -> Tensor:
    """Return positions around multiples of a size, where windows and chunks differ."""
    near = (0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 3 * size + 3)
    return torch.tensor(sorted(set(near)))


def _number(scaling: object, path: str) -> float:
    if isinstance(scaling, (int, float)):
        return float(scaling)
    raise UnsupportedModelError(f"the scale of the attention in {path} is no constant")


def _parameter_name(module: nn.Module, sinks: Tensor, path: str) -> str:
    for name, parameter in module.named_parameters(recurse=False):
        if parameter is sinks:
            return name
    raise UnsupportedModelError(f"the sinks of the attention in {path} are computed")


def check_calls(calls: Sequence[AttentionCall], num_layers: int) -> None:
    """Check that each layer attends once, and in a way that quire's KV cache can serve.

    Raises:
        UnsupportedModelError: It does not.
    """
    paths = {call.path for call in calls}
    if len(paths) != num_layers or len(calls) != num_layers:
        raise UnsupportedModelError(
            f"{len(paths)} modules call transformers' attention function, {len(calls)} times, in a "
            f"model of {num_layers} layers; the fallback needs one call in each layer"
        )
    if len({call.soft_cap for call in calls}) > 1:
        raise UnsupportedModelError("its layers have different soft caps of the attention logits")
