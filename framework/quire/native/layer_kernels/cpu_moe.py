"""Mixture of experts for CPUs, in C++: router, grouping of rows by expert, and activation."""

from __future__ import annotations

from ctypes import Structure, addressof, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_layers import check_weight, wrong_rows


class _Router(Structure):
    """The C struct `Router` of the library."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("weight", "bias", "choice_bias", "expert_scale")),
        ("input_scale", c_void_p),
        *((name, c_int64) for name in ("experts", "hidden", "top_k", "score")),
        *((name, c_int64) for name in ("groups", "top_groups")),
        *((name, c_int32) for name in ("sums_two_best", "renormalizes")),
        *((name, c_float) for name in ("sum_offset", "min_sum", "scale", "threshold", "norm_eps")),
        ("threads", c_int32),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConstants:
    """Constants of a router; vectors are float32, or None.

    Attributes:
        weight: `[E, hidden]`.
        bias: Bias of the logits, `[E]`.
        choice_bias: Bias of the choice, `[E]`.
        expert_scale: Factor of each expert, `[E]`.
        input_scale: Factor of the normed input, `[hidden]`; None: the input is not normed.
        score: Index of the score: softmax, sigmoid, softmax of the chosen, sigmoid of the chosen,
            sparsemixer.
        sums_two_best: Whether a group's score is the sum of its two best; otherwise its best.
    """

    weight: Tensor
    bias: Tensor | None
    choice_bias: Tensor | None
    expert_scale: Tensor | None
    input_scale: Tensor | None
    top_k: int
    score: int
    groups: int
    top_groups: int
    sums_two_best: bool
    renormalizes: bool
    sum_offset: float
    min_sum: float
    scale: float
    threshold: float
    norm_eps: float


class Route:
    """Choice of the experts of each token.

    Args:
        constants: Constants; the memory of their tensors must not move.
    """

    def __init__(self, constants: RouterConstants) -> None:
        vectors = ("weight", "bias", "choice_bias", "expert_scale", "input_scale")
        self._held = {name: getattr(constants, name) for name in vectors}
        self._experts, self._hidden = constants.weight.shape
        self._top_k = constants.top_k
        pointers = []
        for tensor in self._held.values():
            if tensor is not None:
                check_weight(tensor)
            pointers.append(None if tensor is None else tensor.data_ptr())
        self._route = libraries.EXPERTS.load().route
        self._constants = _Router(
            *pointers, self._experts, self._hidden, constants.top_k, constants.score,
            constants.groups, constants.top_groups, constants.sums_two_best,
            constants.renormalizes, constants.sum_offset, constants.min_sum, constants.scale,
            constants.threshold, constants.norm_eps, torch.get_num_threads(),
        )  # fmt: skip
        self._address = addressof(self._constants)
        self._is_normed = constants.input_scale is not None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [T, hidden] -> [T, k], both
        """Return the experts of each token, int64, and their weights, float32.

        Raises:
            ValueError: Dtype or width of `x` is wrong.
        """
        num_tokens, width = x.shape
        if x.dtype != torch.float32 or width != self._hidden:
            raise wrong_rows(x, self._hidden)
        x = x.contiguous()
        inputs = torch.empty_like(x) if self._is_normed else None
        logits = torch.empty(num_tokens, self._experts, dtype=torch.float32)
        experts = torch.empty(num_tokens, self._top_k, dtype=torch.int64)
        weights = torch.empty(num_tokens, self._top_k, dtype=torch.float32)
        self._route(
            self._address, x.data_ptr(), None if inputs is None else inputs.data_ptr(),
            logits.data_ptr(), experts.data_ptr(), weights.data_ptr(), num_tokens,
        )  # fmt: skip
        return experts, weights


class RowGroups:
    """Rows of float32 sorted by expert, and their sums.

    Args:
        experts: Experts of this device.
    """

    def __init__(self, experts: range) -> None:
        self._first, self._count = experts.start, len(experts)
        library = libraries.EXPERTS.load()
        self._group, self._gather = library.group_rows, library.gather_rows
        self._combine = library.combine_rows
        self._threads = torch.get_num_threads()

    def group(self, experts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sort the pairs of experts `[T, k]` int64.

        Returns:
            The pair of each row `[S]`, the row of each pair `[T, k]` or -1, and the number of rows
            up to and including each expert's `[E]`; all int64.
        """
        experts = experts.contiguous()
        pairs = torch.empty(experts.numel(), dtype=torch.int64)
        rows = torch.empty(experts.shape, dtype=torch.int64)
        ends = torch.empty(self._count, dtype=torch.int64)
        self._group(
            experts.data_ptr(), experts.numel(), self._first, self._count,
            pairs.data_ptr(), rows.data_ptr(), ends.data_ptr(),
        )  # fmt: skip
        return pairs, rows, ends

    def gather(
        self,
        x: Tensor,  # [T, n] float32
        pairs: Tensor,  # [S]
        ends: Tensor,  # [E]
        weights: Tensor | None,  # [T, k] float32
    ) -> Tensor:  # [S, n]
        """Return the rows of x by pair, times the weights; rows behind the last are undefined.

        Raises:
            ValueError: `x` is not float32.
        """
        num_tokens, size = x.shape
        if x.dtype != torch.float32:
            raise wrong_rows(x, size)
        x = x.contiguous()
        weights = None if weights is None else weights.contiguous()
        out = torch.empty(len(pairs), size, dtype=torch.float32)
        top_k = len(pairs) // max(num_tokens, 1)
        self._gather(
            x.data_ptr(), pairs.data_ptr(), ends.data_ptr(), self._count,
            None if weights is None else weights.data_ptr(), top_k, size, out.data_ptr(),
            self._threads,
        )  # fmt: skip
        return out

    def combine(
        self,
        outputs: Tensor,  # [S, n] float32
        rows: Tensor,  # [T, k]
        weights: Tensor | None,  # [T, k] float32
    ) -> Tensor:  # [T, n]
        """Return the sum of each token's rows, times the weights.

        Raises:
            ValueError: `outputs` are not float32.
        """
        size = outputs.shape[1]
        if outputs.dtype != torch.float32:
            raise wrong_rows(outputs, size)
        outputs = outputs.contiguous()
        weights = None if weights is None else weights.contiguous()
        num_tokens, top_k = rows.shape
        out = torch.empty(num_tokens, size, dtype=torch.float32)
        self._combine(
            outputs.data_ptr(), rows.data_ptr(), None if weights is None else weights.data_ptr(),
            num_tokens, top_k, size, out.data_ptr(), self._threads,
        )  # fmt: skip
        return out


class ClampedGate:
    """`(up + 1) * gate * sigmoid(alpha * gate)` with clamped inputs.

    Args:
        alpha: Slope of the sigmoid.
        limit: Largest gate, and largest magnitude of the up projection.
    """

    def __init__(self, alpha: float, limit: float) -> None:
        self._function = libraries.EXPERTS.load().clamped_swiglu
        self._constants = (alpha, limit, torch.get_num_threads())

    def __call__(self, gate_up: Tensor) -> Tensor:
        """Return the activation: `[T, 2 * n] -> [T, n]` float32, the gate first.

        Raises:
            ValueError: The dtype is not float32, or the width is odd.
        """
        num_rows, width = gate_up.shape
        if gate_up.dtype != torch.float32 or width % 2:
            raise wrong_rows(gate_up, width + width % 2)
        rows = gate_up.contiguous()
        out = torch.empty(num_rows, width // 2, dtype=torch.float32)
        self._function(rows.data_ptr(), out.data_ptr(), num_rows, width // 2, *self._constants)
        return out
