"""Memory for the weights of a transformers model that is on the meta device.

Parameters are allocated for the loader to fill. What transformers keeps as buffers that checkpoints
contain becomes parameters, because the loader fills parameters. Other buffers, such as those of
rotary embeddings, are computed by transformers, as when it loads a model itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quire.layers import Layer
from quire.layers.layer import frozen

LOADED = "_is_hf_initialized"  # transformers' mark of tensors that it must not initialise


def allocate_weights(model: PreTrainedModel, dtype: torch.dtype, device: torch.device) -> None:
    """Replace all tensors on the meta device; layers of quire are left as they are.

    Args:
        model: Model on the meta device.
        dtype: Dtype of the parameters, of those excepted that transformers keeps in float32.
        device: Device of the tensors.
    """
    wide = _wide_names(model, dtype)
    allocated: dict[int, nn.Parameter] = {}  # by id, so that shared parameters stay shared
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            continue
        transient = module._non_persistent_buffers_set
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is None or name in transient or tensor.device.type != "meta":
                continue
            if id(tensor) not in allocated:
                kept = torch.float32 if wide.search(f"{path}.{name}") else tensor.dtype
                allocated[id(tensor)] = frozen(tuple(tensor.shape), kept, device)
            module._buffers.pop(name, None)
            module.register_parameter(name, allocated[id(tensor)])
    _compute_buffers(model, device)


def _compute_buffers(model: PreTrainedModel, device: torch.device) -> None:
    for tensor in (*model.parameters(), *model.buffers()):
        setattr(tensor, LOADED, True)
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = module._buffers.get(name)
            if buffer is not None:
                module._buffers[name] = torch.empty_like(buffer, device=device)
    model.initialize_weights()


def constant_factor(model: PreTrainedModel, embedding: nn.Embedding) -> float | None:
    """Return the factor on an embedding's rows; None if it does more than multiply them.

    Classes of transformers that extend `nn.Embedding` mostly scale its vectors.
    """
    if type(embedding) is nn.Embedding:
        return 1.0
    dtype = embedding.weight.dtype
    buffers = {
        name: torch.empty_like(buffer, device="cpu") for name, buffer in embedding.named_buffers()
    }
    before = dict(embedding._buffers)
    embedding._buffers.update(buffers)
    setattr(embedding.weight, LOADED, True)
    model._init_weights(embedding)
    weight = torch.tensor([[1.0, 2.0, -0.5], [4.0, 0.25, 8.0]], dtype=dtype)
    given = {"weight": weight, **dict(embedding.named_buffers())}
    found = torch.func.functional_call(embedding, given, torch.tensor([[1, 0]]))
    embedding._buffers.update(before)
    factors: Tensor = (found[0] / weight[[1, 0]]).flatten()
    return float(factors[0]) if bool((factors == factors[0]).all()) else None


def _wide_names(model: PreTrainedModel, dtype: torch.dtype) -> re.Pattern[str]:
    """Return a pattern of the parameters that transformers keeps in float32."""
    names: set[str] = set()
    if dtype is torch.float16:
        names |= set(model._keep_in_fp32_modules or ())
    if dtype in (torch.float16, torch.bfloat16):
        names |= set(model._keep_in_fp32_modules_strict or ())
    return re.compile(_alternatives(names))


def _alternatives(names: Iterable[str]) -> str:
    """Return a regular expression that finds any of the names in a path; none finds nothing."""
    return "|".join(rf"(?:^|\.){name}(?:$|\.)" for name in sorted(names)) or r"(?!)"
