"""Logit masks for CPUs, in C++, and the checks that all layer kernels make."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.native.layer_kernels import libraries


def check_weight(weight: Tensor) -> None:
    """Check a weight whose memory the library reads at each call.

    Raises:
        ValueError: The weight is not contiguous float32 on the CPU.
    """
    is_plain = weight.dtype == torch.float32 and weight.device.type == "cpu"
    if not is_plain or not weight.is_contiguous():
        raise ValueError(
            f"the weight must be contiguous float32 on the CPU, got {weight.dtype} on "
            f"{weight.device} with strides {weight.stride()}"
        )


def wrong_rows(x: Tensor, size: int) -> ValueError:
    """Return the error for rows that are not float32 `[..., size]`."""
    return ValueError(f"rows must be float32 [..., {size}], got {x.dtype} {list(x.shape)}")


class LogitMask:
    """Masking of logits by a bitmask with one bit per token."""

    def __init__(self) -> None:
        self._mask = libraries.LAYERS.load().mask_logits
        self._threads = torch.get_num_threads()

    def __call__(
        self,
        logits: Tensor,  # [N, V] float32, in place; each row contiguous
        rows: Tensor,  # [M] int64, all different
        words: Tensor,  # [M, at least ceil(V / 32)] int32
    ) -> None:
        """Set the logits of row `rows[i]` to -inf where the bit in `words[i]` is 0.

        Raises:
            ValueError: Dtypes or shapes are wrong.
        """
        if logits.dtype != torch.float32:
            raise wrong_rows(logits, logits.shape[1])
        if rows.dtype != torch.int64 or words.dtype != torch.int32:
            raise ValueError(
                f"rows must be int64 and words int32, got {rows.dtype} and {words.dtype}"
            )
        if len(rows) != len(words) or words.shape[1] * 32 < logits.shape[1]:
            raise ValueError(
                f"{list(words.shape)} words do not match {len(rows)} rows with a vocabulary of "
                f"{logits.shape[1]}"
            )
        if logits.stride(1) != 1:
            raise ValueError("each row of the logits must be contiguous")
        rows, words = rows.contiguous(), words.contiguous()
        self._mask(
            logits.data_ptr(), logits.stride(0), logits.shape[1], rows.data_ptr(), len(rows),
            words.data_ptr(), words.shape[1], self._threads,
        )  # fmt: skip
