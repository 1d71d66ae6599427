"""Norms of query heads and key heads, one class for each formula; and the norm of value heads.

Letters as in `quire.interfaces.attention`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from quire.layers.context import LayerContext
from quire.layers.layer import Layer, frozen
from quire.layers.norm import add_offset, eps_on_cpu, normalise, normalise_wide, weight_dtype
from quire.layers.parallel import shard, shard_kv_heads
from quire.layers.partial_sums import summed
from quire.native.layer_kernels import cpu_norms

if TYPE_CHECKING:
    from quire.kernels.group_norm import GroupNormLaunch

Vectors = Literal["shared", "own", "flat", "listed"]


@dataclass(frozen=True, slots=True)
class _Side:
    """The query heads or the key heads.

    Attributes:
        num_heads: Number of them in the whole model.
        heads: Those of this device.
        rows: Their rows in the weight.
    """

    num_heads: int
    heads: range
    rows: slice


class HeadNorms(Layer):
    """Base of norms of query heads and key heads.

    Args:
        num_heads: Number of query heads of the whole model.
        num_kv_heads: Number of key/value heads of the whole model.
        head_dim: Elements per head.
        eps: Term added to the mean square or variance.
        context: Settings to build the layer with.
        parts: Names of the checkpoint's norms of queries and of keys.
        vectors: Weights in the checkpoint: `shared`, one vector `[D]` for all query heads and one
            for all key heads; `own`, `[H, D]` and `[K, D]`; `flat`, `[H * D]` and `[K * D]`;
            `listed`, a vector `[D]` for each head, whose part is the norm's name and the head's
            index: `q_norm.3`. None: `flat` for norms of projections, and else `shared`.
        has_weight: Whether normed heads are multiplied by weights of the checkpoint.
        weight_offset: As in `RMSNorm`.
        order: The `qk_order` of `QKVParallelLinear`.
        rounds_before_weight: As in `RMSNorm`.
        keys_of: Norm of another layer with the same sizes, whose weights of keys are used, for a
            layer that reads the keys of that layer and has none of its own; None: the checkpoint
            has them.

    Attributes:
        is_fused: True if backends that fuse the rotary embedding apply the norm themselves, by
            `weight` and `eps`.
    """

    is_fused: ClassVar[bool] = False
    default_vectors: ClassVar[Vectors] = "shared"
    weight: Tensor  # [H + K, D]; ones if the checkpoint has none

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        eps: float,
        context: LayerContext,
        *,
        parts: tuple[str, str] = ("q_norm", "k_norm"),
        vectors: Vectors | None = None,
        has_weight: bool = True,
        weight_offset: float = 0.0,
        order: Sequence[int] | None = None,
        rounds_before_weight: bool = False,
        keys_of: HeadNorms | None = None,
    ) -> None:
        super().__init__()
        heads = shard("num_attention_heads", num_heads, context.tp)
        kv_heads = shard_kv_heads(num_kv_heads, context.tp)
        num_rows = len(heads) + len(kv_heads)
        self.sides = {
            parts[0]: _Side(num_heads, heads, slice(0, len(heads))),
            parts[1]: _Side(num_kv_heads, kv_heads, slice(len(heads), num_rows)),
        }
        self.keys_name = parts[1]
        self.context = context
        self.eps = eps
        self.eps_on_cpu = eps_on_cpu(eps, context)
        self.shape = (num_rows, head_dim)
        self.vectors = vectors or self.default_vectors
        self.weight_offset = weight_offset
        self.order = order
        self.rounds_before_weight = rounds_before_weight
        self._key_users: list[HeadNorms] = []  # a list, so that they are no child modules
        if keys_of is not None:
            keys_of._key_users.append(self)
        self.kernel: cpu_norms.GroupNorms | None = None
        self.launch: GroupNormLaunch | None = None
        dtype = weight_dtype(weight_offset, context)
        if has_weight:
            self.register_parameter("weight", frozen(self.shape, dtype, context.device))
        else:
            ones = torch.ones(self.shape, dtype=dtype, device=context.device)
            self.register_buffer("weight", ones, persistent=False)

    def checkpoint_shape(self, parameter: str, part: str) -> tuple[int, ...]:
        """Return `[D]`, or the shape of the vectors of all query or all key heads."""
        del parameter
        head_dim, side = self.shape[1], self.sides[part.partition(".")[0]]
        shapes = {"own": (side.num_heads, head_dim), "flat": (side.num_heads * head_dim,)}
        return shapes.get(self.vectors, (head_dim,))

    def load_weight(self, parameter: str, tensor: Tensor, part: str) -> None:
        """Copy a vector to all query or key heads or to one of them, or each to its head."""
        name, _, head = part.partition(".")
        side = self.sides[name]
        vectors = add_offset(tensor, self.weight_offset).view(-1, self.shape[1])
        if self.order is not None:
            vectors = vectors[:, list(self.order)]
        rows = self.get_parameter(parameter)[side.rows]
        if self.vectors == "listed":
            at = int(head) - side.heads.start
            rows = rows[at : at + 1] if int(head) in side.heads else rows[:0]
        elif len(vectors) > 1:
            vectors = vectors[side.heads.start : side.heads.stop]
        rows.copy_(vectors.expand_as(rows))
        if name == self.keys_name:  # now: those that use them may have been finished before
            for user in self._key_users:
                user.weight[side.rows].copy_(self.weight[side.rows])

    def finish_loading(self) -> None:
        """Bind the kernel, if layers run kernels."""
        if self.context.kernels == "native":
            self.kernel = self._native_kernel()
        if self.context.kernels == "triton":
            self.launch = self._triton_kernel()

    @abstractmethod
    def forward(self, qk: Tensor) -> Tensor:
        """Return the normed query heads and key heads, for both `[T, H + K, D]`.

        If the class is not fused, `qk` is overwritten and returned.
        """

    @abstractmethod
    def _native_kernel(self) -> cpu_norms.GroupNorms:
        """Return the native kernel of the norm."""

    def _triton_kernel(self) -> GroupNormLaunch | None:
        """Return the Triton kernel of the norm, if it has one."""
        return None


class QKNorm(HeadNorms):
    """RMS norm of each query head and key head, for both in one pass.

    A backend that fuses the rotary embedding takes `weight` and `eps`, and applies the norm itself.
    """

    is_fused = True

    def forward(self, qk: Tensor) -> Tensor:
        """Return the normed heads in new memory, `[T, H + K, D]`."""
        if self.kernel is not None:
            return self.kernel(qk)
        if self.eps_on_cpu is not None:
            return normalise(qk, self.eps_on_cpu, self.weight)
        return normalise_wide(qk, self.weight, self.eps, self.rounds_before_weight)

    def _native_kernel(self) -> cpu_norms.GroupNorms:
        num_heads, head_dim = self.shape
        return cpu_norms.GroupNorms(self.weight, self.shape, [head_dim] * num_heads, self.eps)


class QKLayerNorm(HeadNorms):
    """Layer norm of each query head and key head, without bias (Cohere, StableLM).

    It is computed in float32 and rounded once, or before the product with the weight too.
    """

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise the heads `[T, H + K, D]` where they are, and return them."""
        in_place = self.kernel or self.launch
        if in_place is not None:
            in_place.in_place(qk)
            return qk
        normed = functional.layer_norm(qk.float(), self.shape[1:], None, None, self.eps)
        if self.rounds_before_weight:
            normed = normed.to(qk.dtype)
        return qk.copy_(normed * self.weight)

    def _native_kernel(self) -> cpu_norms.GroupNorms:
        num_heads, head_dim = self.shape
        sizes = [head_dim] * num_heads
        return cpu_norms.GroupNorms(self.weight, self.shape, sizes, self.eps, is_centred=True)

    def _triton_kernel(self) -> GroupNormLaunch | None:
        from quire.kernels.group_norm import GroupNormLaunch  # loads Triton

        return GroupNormLaunch(
            self.weight,
            self.eps,
            is_centred=True,
            rounds_before_weight=self.rounds_before_weight,
        )


class QKProjectionNorm(HeadNorms):
    """RMS norm over all query heads at once, and one over all key heads (OLMo 2, MiniMax-M2).

    Each device of a tensor-parallel group has some of the heads. So the group sums the squares of
    each token.
    """

    default_vectors = "flat"

    def finish_loading(self) -> None:
        """Compute the number of summed elements, and bind the native kernel as other norms do."""
        super().finish_loading()
        self.counts = torch.tensor(self._counts(), dtype=torch.float32, device=self.context.device)

    def forward(self, qk: Tensor) -> Tensor:
        """Normalise the heads `[T, H + K, D]` where they are, and return them."""
        if self.launch is not None:
            self.launch.in_place(qk)
            return qk
        if self.kernel is None:
            return self._by_torch(qk)
        if self.context.tp.size == 1:
            self.kernel.in_place(qk)
        else:
            self.kernel.scale(qk, summed(self.kernel.squares(qk), self.context))
        return qk

    def _by_torch(self, qk: Tensor) -> Tensor:
        num_heads = self._num_heads()[0]
        squares = qk.float().square().sum(-1)  # [T, H + K]
        sides = (squares[:, :num_heads], squares[:, num_heads:])
        sums = summed(torch.cat([side.sum(-1, keepdim=True) for side in sides], -1), self.context)
        factors = (sums / self.counts + self.eps).rsqrt().unsqueeze(-1)  # [T, 2, 1]
        for index, side in enumerate(self.sides.values()):
            heads = qk[:, side.rows]
            normed = heads * factors[:, index : index + 1]
            if self.rounds_before_weight:
                normed = normed.to(qk.dtype)
            heads.copy_(normed * self.weight[side.rows])
        return qk

    def _native_kernel(self) -> cpu_norms.GroupNorms:
        sizes = [count * self.shape[1] for count in self._num_heads()]
        return cpu_norms.GroupNorms(self.weight, self.shape, sizes, self.eps, counts=self._counts())

    def _triton_kernel(self) -> GroupNormLaunch | None:
        if self.context.tp.size > 1:
            return None
        from quire.kernels.group_norm import GroupNormLaunch  # loads Triton

        num_first, rounds = self._num_heads()[0], self.rounds_before_weight
        return GroupNormLaunch(
            self.weight, self.eps, num_first=num_first, rounds_before_weight=rounds
        )

    def _num_heads(self) -> list[int]:
        """Return the numbers of query heads and of key heads on this device."""
        return [len(side.heads) for side in self.sides.values()]

    def _counts(self) -> list[int]:
        """Return the elements that the group sums; replicated key heads count on each device."""
        return [count * self.shape[1] * self.context.tp.size for count in self._num_heads()]


class ValueNorm(Layer):
    """RMS norm of each value head, without weight (Gemma 4).

    Args:
        num_kv_heads: Number of key/value heads of the whole model.
        head_dim: Elements per head.
        eps: Term added to the mean square.
        context: Settings to build the layer with.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, eps: float, context: LayerContext) -> None:
        super().__init__()
        self.eps = eps
        self.eps_on_cpu = eps_on_cpu(eps, context)
        self.shape = (len(shard_kv_heads(num_kv_heads, context.tp)), head_dim)
        self.kernels = context.kernels
        self.kernel: cpu_norms.GroupNorms | GroupNormLaunch | None = None

    def finish_loading(self) -> None:
        """Bind the kernel, if layers run kernels."""
        if self.kernels == "triton":
            from quire.kernels.group_norm import GroupNormLaunch  # loads Triton

            self.kernel = GroupNormLaunch(None, self.eps)
        if self.kernels == "native":
            num_heads, head_dim = self.shape
            sizes = [head_dim] * num_heads
            self.kernel = cpu_norms.GroupNorms(None, self.shape, sizes, self.eps)

    def forward(self, v: Tensor) -> Tensor:
        """Normalise the value heads `[T, K, D]` where they are, and return them."""
        if self.kernel is not None:
            self.kernel.in_place(v)
            return v
        if self.eps_on_cpu is not None:
            return v.copy_(normalise(v, self.eps_on_cpu, None))
        return v.copy_(functional.rms_norm(v, self.shape[1:], None, self.eps))
