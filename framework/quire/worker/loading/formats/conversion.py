"""Conversion of a checkpoint's tensors to those that models expect, by its names and its config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from quire.compose.choices.quantization_choice import DEQUANTIZED, dequantized_dtype
from quire.errors import CheckpointCorruptError
from quire.worker.loading.checkpoint_files import StoredTensor
from quire.worker.loading.formats.block_fp8 import dequantize_fp8
from quire.worker.loading.formats.checkpoint_tensor import CheckpointTensor, unchanged
from quire.worker.loading.formats.consolidated import from_consolidated, is_consolidated
from quire.worker.loading.formats.mxfp4 import dequantize_mxfp4

LOG = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def converted_tensors(
    stored: Mapping[str, StoredTensor], config: Mapping[str, Any], *, dequantizes: bool
) -> dict[str, CheckpointTensor]:
    """Return the tensors of a checkpoint in the layout of Hugging Face.

    Args:
        stored: Tensors of its files.
        config: Its config.json.
        dequantizes: Whether quantized weights become ordinary ones; False if a quantization method
            reads them.

    Raises:
        CheckpointCorruptError: Tensors do not fit together.
    """
    tensors = unchanged(stored)
    if is_consolidated(tensors):
        tensors = from_consolidated(tensors, config)
    return _dequantized(tensors, config) if dequantizes else tensors


def _dequantized(
    tensors: dict[str, CheckpointTensor], config: Mapping[str, Any]
) -> dict[str, CheckpointTensor]:
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method")
    if method not in DEQUANTIZED:
        return tensors
    dtype = _dtype(config)
    LOG.info("the %s weights of the checkpoint are dequantized to %s", method, str(dtype)[6:])
    if method == "mxfp4":
        return dequantize_mxfp4(tensors, dtype)
    return dequantize_fp8(tensors, quantization, dtype)


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """Return the dtype that weights had before they were quantized."""
    name = dequantized_dtype(config)
    if name not in DTYPES:
        raise CheckpointCorruptError(f"config.json has the dtype {name!r}, which is unknown")
    return DTYPES[name]
