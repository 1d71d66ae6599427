"""Replacement of a transformers model's layers by quire's, by the type of their modules."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from quire.errors import UnsupportedModelError
from quire.layers import Attention, Layer, LayerContext, make_activation
from quire.layers.parallel import shard, shard_kv_heads
from quire_models.transformers_fallback.attention_calls import AttentionCall
from quire_models.transformers_fallback.attention_names import ATTENTION, attention_name
from quire_models.transformers_fallback.expert_forms import ExpertsForm, TransformersGate
from quire_models.transformers_fallback.model_head import ModelHead
from quire_models.transformers_fallback.shard_plan import (
    REPLICATED,
    ShardPlan,
    ShardStyle,
    features,
    linear_modules,
)
from quire_models.transformers_fallback.step_layers import (
    CurrentStep,
    InputShardedLinear,
    OutputShardedLinear,
    PackedAttention,
    TokenEmbedding,
    TokenExperts,
    TokenHead,
)
from quire_models.transformers_fallback.weights_on_device import constant_factor

MIN_OUTPUTS = 16  # a replicated linear layer with fewer is a gate, which stays as it is
GATE_UP = "gate_and_up"  # of experts; families have linear layers with the name gate_up_proj


class LayerReplacement:
    """Replaces the layers of one model, which is on the meta device.

    Args:
        model: Model.
        head: Head of the model.
        calls: Attention of each layer.
        experts: Experts that quire computes.
        step: Step that the layers read.
        context: Settings to build the layers with.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: ModelHead,
        calls: Iterable[AttentionCall],
        experts: Iterable[ExpertsForm],
        step: CurrentStep,
        context: LayerContext,
    ) -> None:
        self._model, self._head = model, head
        self._calls = {call.path: call for call in calls}
        self._experts = tuple(experts)
        self._plan = ShardPlan(model, self._calls.values())
        self._step, self._context = step, context

    def replace_all(self) -> None:
        """Replace linear layers, experts, embedding and head, and add paged attention.

        Other linear layers of the head stay, because it is computed without the step's adapters.

        Raises:
            UnsupportedModelError: The embedding does more than look up and multiply.
        """
        kept, body = _routers(self._model), f"{self._head.body_name}."
        for path, linear in list(linear_modules(self._model)):
            is_gate = features(linear)[1] < MIN_OUTPUTS and self._plan.style(path) == REPLICATED
            if path.startswith(body) and path not in kept and not is_gate:
                self._model.set_submodule(path, self._linear(path, linear))
        for form in self._experts:
            self._replace_experts(form)
        self._replace_vocabulary()
        for call in self._calls.values():
            self._add_attention(call)

    def drop_sinks(self) -> None:
        """Remove the modules' own sinks, because quire's attention has them.

        It must follow the initialisation by transformers, which writes to them.
        """
        for call in self._calls.values():
            if call.sinks is not None:
                self._model.get_submodule(call.path).register_parameter(call.sinks, None)

    def _linear(self, path: str, linear: nn.Linear | Conv1D) -> Layer:
        style = self._plan.style(path)
        num_inputs, num_outputs = features(linear)
        has_bias, is_transposed = linear.bias is not None, isinstance(linear, Conv1D)
        if style.dim == "inputs" and not is_transposed:
            return InputShardedLinear(
                path, num_inputs, num_outputs,
                bias=has_bias, step=self._step, cuts=style.has_whole_side, context=self._context,
            )  # fmt: skip
        is_sharded = style.dim == "outputs" and not is_transposed
        return OutputShardedLinear(
            path, num_inputs, num_outputs,
            self._rows(path, num_outputs, style) if is_sharded else range(num_outputs),
            bias=has_bias, step=self._step, gathers=is_sharded and style.has_whole_side,
            is_transposed=is_transposed, context=self._context,
        )  # fmt: skip

    def _rows(self, path: str, num_outputs: int, style: ShardStyle) -> range:
        """Return this device's outputs; those of a key/value head that several devices have."""
        call, tp = self._calls.get(path.rpartition(".")[0]), self._context.tp
        is_gathered = style.has_whole_side
        if call is not None and call.num_kv_heads < tp.size and not is_gathered:
            head_dim, rest = divmod(num_outputs, call.num_kv_heads)
            if not rest and head_dim in (call.key_dim, call.value_dim):
                heads = shard_kv_heads(call.num_kv_heads, tp)
                return range(heads.start * head_dim, heads.stop * head_dim)
        return shard(f"outputs of {path}", num_outputs, tp)

    def _replace_experts(self, form: ExpertsForm) -> None:
        name, context = form.activation, self._context
        activation: Layer = TransformersGate(form)
        if name is not None:
            activation = make_activation(name, is_gated=form.has_gate, context=context)
        layer = TokenExperts(
            form.path, form.num_experts, form.hidden_size, form.width, activation,
            has_gate=form.has_gate, bias=form.has_bias, gate_up_name=GATE_UP, context=context,
        )  # fmt: skip
        self._model.set_submodule(form.path, layer)

    def _replace_vocabulary(self) -> None:
        head, context = self._head, self._context
        factor = constant_factor(self._model, head.embedding)
        if factor is None:
            raise UnsupportedModelError(
                f"its embedding {type(head.embedding).__name__} does more than multiply vectors"
            )
        vocab_size, hidden_size = head.embedding.weight.shape
        embedding = TokenEmbedding(vocab_size, hidden_size, factor, context)
        linear = TokenHead(
            head.vocab_size, head.linear.in_features, context,
            tied_to=embedding if head.is_tied else None, bias=head.linear.bias is not None,
        )  # fmt: skip
        self._model.set_submodule(head.embedding_path, embedding)
        self._model.set_submodule(head.linear_path, linear)

    def _add_attention(self, call: AttentionCall) -> None:
        module = self._model.get_submodule(call.path)
        attention = Attention(
            attention_name(call.path), call.num_heads, call.num_kv_heads, call.head_dim,
            scale=call.scale, context=self._context,
            sliding_window=call.mask.size if call.mask.name == "sliding_window" else None,
            logit_soft_cap=call.soft_cap,
            attention_chunk=call.mask.size if call.mask.name == "chunked_local_attention" else None,
            has_sinks=call.sinks is not None,
        )  # fmt: skip
        module.add_module(ATTENTION, attention)
        packed = PackedAttention(
            attention, call.num_heads, call.num_kv_heads, call.value_dim, self._step,
            self._context.tp,
        )  # fmt: skip
        vars(module)["packed_attention"] = packed


def _routers(model: PreTrainedModel) -> set[str]:
    """Return the paths of linear layers that route to experts, whose weights stay exact."""
    found = set()
    for path, module in model.named_modules():
        siblings = dict(module.named_children())
        if "experts" in siblings:
            found |= {f"{path}.{name}" for name in siblings if name in ("gate", "router")}
    return found
