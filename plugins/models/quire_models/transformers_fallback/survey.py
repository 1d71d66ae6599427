"""Survey of a transformers model: what the engine must know of it, or why the fallback refuses it.

A pass on the meta device, which computes shapes only, shows how each layer attends. The survey runs
in the worker, which has built the model there anyway. As `python -m` of this module it is a process
that reads a request as JSON and writes a survey: so planning needs no torch in its own process.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.attention_calls import (
    AttentionCall,
    check_calls,
    recorded_calls,
)
from quire_models.transformers_fallback.checkpoint_code import one_line
from quire_models.transformers_fallback.checkpoint_names import CheckpointNames
from quire_models.transformers_fallback.expert_forms import expert_forms
from quire_models.transformers_fallback.meta_model import (
    BUILDING,
    EXPERTS_ON_META,
    build_on_meta,
)
from quire_models.transformers_fallback.model_head import ModelHead
from quire_models.transformers_fallback.shard_plan import ShardPlan, general_path

NUM_TOKENS = 13  # unlike any size of a model
MIXING = frozenset({"convolution", "conv1d", "roll", "_thnn_fused_gru_cell", "lstm", "gru"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Properties of a model.

    Attributes:
        num_params: Number of elements in the tensors of a checkpoint.
        calls: Attention of each layer, in order.
        sharded_sizes: Sizes that tensor parallelism divides, by their names in error messages.
        num_experts: Number of experts that quire computes in a layer; 0: there are none.
        expert_sizes: The same as `sharded_sizes`, for the widths of experts.
    """

    vocab_size: int
    hidden_size: int
    max_model_len: int
    num_params: int
    has_tied_head: bool
    calls: tuple[AttentionCall, ...]
    sharded_sizes: dict[str, int]
    num_experts: int
    expert_sizes: dict[str, int]


def survey(model: PreTrainedModel) -> Survey:
    """Survey a model that is on the meta device.

    Raises:
        UnsupportedModelError: The fallback would be wrong for the model.
    """
    head = ModelHead(model)
    _check_parts(model, head)
    experts = expert_forms(model)
    CheckpointNames(model, experts)  # raises for tensors that it has no names for
    with torch.no_grad(), recorded_calls(model) as calls, head.attached():
        hidden = _run(model, head)
    check_calls(calls, model.config.num_hidden_layers)
    tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}
    return Survey(
        vocab_size=head.vocab_size,
        hidden_size=hidden,
        max_model_len=_max_model_len(model),
        num_params=sum(tensor.numel() for tensor in tensors.values()),
        has_tied_head=head.is_tied,
        calls=tuple(calls),
        sharded_sizes=ShardPlan(model, calls).sharded_sizes(),
        num_experts=max((form.num_experts for form in experts), default=0),
        expert_sizes={f"width of {general_path(form.path)}": form.width for form in experts},
    )


def answer(request: str) -> str:
    """Return a survey as JSON, or `{"refusal": reason}` for a model that the fallback refuses.

    Args:
        request: JSON: the content of a config.json under `config`, and under `code_folder` the
            folder whose code may be run, or null.
    """
    given = json.loads(request)
    folder = given["code_folder"]
    try:
        with BUILDING:
            model = build_on_meta(given["config"], torch.float32, Path(folder) if folder else None)
            return json.dumps(asdict(survey(model)))
    except UnsupportedModelError as error:
        return json.dumps({"refusal": str(error)})


def main() -> None:
    """Read a request from stdin, and write the answer as the last line of stdout."""
    sys.stdout.write("\n" + answer(sys.stdin.read()))


def _run(model: PreTrainedModel, head: ModelHead) -> int:
    """Run the model, and return the size of its hidden states.

    Raises:
        UnsupportedModelError: The pass cannot be computed from shapes, or a layer lets tokens see
            each other outside of attention.
    """
    experts = model.config._experts_implementation
    model.config._experts_implementation = EXPERTS_ON_META
    positions = torch.arange(NUM_TOKENS, device="meta")[None]
    mask = torch.ones(1, NUM_TOKENS, dtype=torch.int64, device="meta")
    try:
        with TokenMixing(model):
            out = head.body(
                input_ids=torch.zeros_like(positions),
                position_ids=positions,
                attention_mask=mask,
                use_cache=False,
            )
        hidden: Tensor = out[0]
        logits = head.logits(hidden[0])
    except UnsupportedModelError:
        raise
    except Exception as error:  # the edge of transformers
        raise UnsupportedModelError(
            f"its forward pass cannot be computed from shapes alone: {one_line(error)}"
        ) from error
    finally:
        model.config._experts_implementation = experts
    if tuple(logits.shape) != (NUM_TOKENS, head.vocab_size):
        raise UnsupportedModelError(
            f"its head gives logits of the shape {list(logits.shape)} for {NUM_TOKENS} tokens"
        )
    return hidden.shape[-1]


class TokenMixing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that refuses what would be wrong for several requests in one row of tokens.

    These are operators that combine tokens of neighbouring positions, and a count of the tokens
    from 0 on, which takes the place of their positions. Experts are left out: they count tokens to
    sort them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._num_experts_running = 0
        self._experts = [each for path, each in model.named_modules() if path.endswith("experts")]
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        """Begin to watch operators."""
        for module in self._experts:
            self._hooks.append(module.register_forward_pre_hook(self._enter_experts))
            self._hooks.append(module.register_forward_hook(self._leave_experts))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Remove what watches the experts."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator.

        Raises:
            UnsupportedModelError: It is one of those that are refused.
        """
        del types
        result = func(*args, **(kwargs or {}))
        if self._num_experts_running:
            return result
        name = func.overloadpacket.__name__
        is_over_tokens = name.startswith("cum") and args[0].shape[args[1]] == NUM_TOKENS
        if name in MIXING or (is_over_tokens and args[0].is_floating_point()):
            raise UnsupportedModelError(
                f"it combines the tokens of a batch outside of attention ({name})"
            )
        if name == "arange" and len(result) == NUM_TOKENS:
            raise UnsupportedModelError(
                "it numbers the tokens of a batch itself, whatever their positions are"
            )
        return result

    def _enter_experts(self, *_: object) -> None:
        self._num_experts_running += 1

    def _leave_experts(self, *_: object) -> None:
        self._num_experts_running -= 1


def _check_parts(model: PreTrainedModel, head: ModelHead) -> None:
    """Check what the pass does not show.

    Raises:
        UnsupportedModelError: A part of the model is not supported.
    """
    if "position_ids" not in inspect.signature(head.body.forward).parameters:
        raise UnsupportedModelError("its forward pass takes no positions of the tokens")
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding) and module.max_norm is not None:
            raise UnsupportedModelError(f"{path} changes its own weight (max_norm)")
        if "create_position_ids_from_input_ids" in dir(module):
            raise UnsupportedModelError(f"{path} counts positions from the padding token's id on")
    if model.is_custom_code():
        _check_custom_buffers(model)
    for path, name in _plain_tensors(model):
        raise UnsupportedModelError(f"{path}.{name} is a tensor that is no parameter and no buffer")


def _check_custom_buffers(model: PreTrainedModel) -> None:
    """Check that transformers can compute the buffers of a checkpoint's own code.

    Raises:
        UnsupportedModelError: Only a constructor of that code computes them.
    """
    for path, module in model.named_modules():
        is_rotary = "RotaryEmbedding" in type(module).__name__ and "original_inv_freq" in dir(
            module
        )
        for name in module._non_persistent_buffers_set:
            if not is_rotary and module._buffers.get(name) is not None:
                raise UnsupportedModelError(
                    f"the checkpoint's code has the buffer {path}.{name}, which no file contains"
                )


def _plain_tensors(model: PreTrainedModel) -> Iterator[tuple[str, str]]:
    """Yield tensors on the meta device that are plain attributes: nothing would compute them."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.device.type == "meta":
                yield path, name


def _max_model_len(model: PreTrainedModel) -> int:
    longest = model.config.to_dict().get("max_position_embeddings")
    longest = longest or model.config.to_dict().get(
        model.config.attribute_map.get("max_position_embeddings", "")
    )
    if not isinstance(longest, int) or longest < 1:
        raise UnsupportedModelError("config.json has no max_position_embeddings")
    return longest


if __name__ == "__main__":
    main()
