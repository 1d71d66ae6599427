"""A model of transformers with quire's linear layers, embedding, head and paged attention in it.

Experts are quire's as well, where their form is known. transformers computes everything else:
norms, rotary embeddings, routers. The batch is one row of all tokens with their positions, and
transformers' own cache is off.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from quire.errors import RefusedError
from quire.interfaces.model import ForwardBatch, Model, ModelDescription, StageTensors
from quire.layers import Layer, LayerContext
from quire_models.transformers_fallback.attention_names import attention_name
from quire_models.transformers_fallback.checkpoint_names import CheckpointNames
from quire_models.transformers_fallback.expert_forms import expert_forms
from quire_models.transformers_fallback.layer_replacement import GATE_UP, LayerReplacement
from quire_models.transformers_fallback.meta_model import BUILDING, build_on_meta
from quire_models.transformers_fallback.model_head import ModelHead
from quire_models.transformers_fallback.step_layers import CurrentStep
from quire_models.transformers_fallback.survey import survey
from quire_models.transformers_fallback.weights_on_device import allocate_weights

IMPLEMENTATION = "quire"  # name of the attention function in transformers
EXPERTS = "grouped_mm"  # of transformers, for experts of other forms: without a loop over data


class TransformersForCausalLM(Layer, Model):
    """Causal language model of transformers."""

    packed_modules: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {GATE_UP: ("gate_proj", "up_proj")}
    )

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__()
        if context.batch_invariant:
            raise RefusedError(
                "batch-invariant mode is not possible with a model that transformers computes; "
                "leave out --batch-invariant"
            )
        self.step = CurrentStep()
        with BUILDING:
            model = build_on_meta(description.config, context.dtype, description.code_folder)
            self._build(model, context)

    def _build(self, model: PreTrainedModel, context: LayerContext) -> None:
        found, head, experts = survey(model), ModelHead(model), expert_forms(model)
        names = CheckpointNames(model, experts)
        layers = LayerReplacement(model, head, found.calls, experts, self.step, context)
        layers.replace_all()
        allocate_weights(model, context.dtype, context.device)
        layers.drop_sinks()
        head.drop_copies_of_the_bias()
        self._names = names
        self.weight_rules = names.rules
        self.tied_weights = head.tied_weights
        self._sinks = {
            call.sinks_path: f"{attention_name(call.path)}.sinks"
            for call in found.calls
            if call.sinks_path is not None
        }
        self._add_children(model)
        model.config._attn_implementation = IMPLEMENTATION
        model.config._experts_implementation = EXPERTS
        head.attach()
        self._head = head

    def forward(
        self,
        input_ids: Tensor | None,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden]
        stage_input: StageTensors | None = None,
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm."""
        del stage_input  # the model has no pipeline stages
        given: dict[str, Any] = {"input_ids": None if input_ids is None else input_ids[None]}
        if inputs_embeds is not None:
            given = {"inputs_embeds": inputs_embeds[None]}
        self.step.batch = batch
        try:
            out = self._head.body(**given, position_ids=positions[None], use_cache=False)
        finally:
            self.step.batch = None
        hidden: Tensor = out[0][0]
        return hidden

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden]`."""
        return self._head.logits(hidden_states)

    def map_weight_name(self, name: str) -> str | None:
        """Return the model's name of a checkpoint weight.

        None for tensors that transformers ignores.
        """
        known = self._names.model_name(name)
        return None if known is None else self._sinks.get(known, known)

    def _add_children(self, model: PreTrainedModel) -> None:
        """Add the parts of the model under their own names, which are those of the checkpoint."""
        for name, module in model.named_children():
            self.add_module(name, module)
        for name, parameter in model.named_parameters(recurse=False):
            self.register_parameter(name, parameter)


def attend(
    module: nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, K, T, D]
    value: Tensor,  # [1, K, T, Dv]
    attention_mask: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a layer, as transformers' attention functions do.

    Scale, window, soft cap and sinks are those that the survey found for the layer.
    """
    del attention_mask, others
    return module.packed_attention(query, key, value), None  # type: ignore[operator]


AttentionInterface.register(IMPLEMENTATION, attend)
