"""The decoder with a language-model head, for every family of the table.

Letters as in `quire.interfaces.attention`.
"""

from __future__ import annotations

from torch import Tensor

from quire.interfaces.model import ForwardBatch, Model, ModelDescription, StageTensors
from quire.interfaces.weight_rules import WeightRules
from quire.layers import Layer, LayerContext, LMHead
from quire_models.decoder.decoder_stage import DecoderStage
from quire_models.decoder.options.attention_config import AttentionConfig
from quire_models.decoder.options.decoder_config import DecoderConfig
from quire_models.family_table import read_decoder_config

PACKED_MODULES = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "qk_proj": ("q_proj", "k_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "qk_norm": ("q_norm", "k_norm"),
}
FIRST_STAGE = ("embedding_norm", "project_in", "embed_positions")


class DecoderForCausalLM(Layer, Model):
    """Decoder with a language-model head."""

    def __init__(self, description: ModelDescription, context: LayerContext) -> None:
        super().__init__()
        config = self.read_config(description)
        self.config = config
        self.weight_prefixes = dict(config.weight_prefixes)
        self.weight_rules = config.weight_rules
        self.ignored_weights = config.ignored_weights
        self._rules = WeightRules(config.weight_rules)
        self.packed_modules = PACKED_MODULES | _listed_norms(config)
        self.model = DecoderStage(config, description.max_model_len, context)
        self.lm_head = self._head(context) if self.model.is_last else None
        if config.tie_word_embeddings:
            self.tied_weights = {"lm_head.weight": "model.embed_tokens.weight"}

    @classmethod
    def read_config(cls, description: ModelDescription) -> DecoderConfig:
        """Return the decoder's options; a family outside of the table overrides it."""
        return read_decoder_config(description.architecture, description.config)

    def forward(
        self,
        input_ids: Tensor | None,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden]
        stage_input: StageTensors | None = None,
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or the input of the next stage."""
        inputs: Tensor | None = None
        if stage_input is not None:
            x, residual = stage_input.hidden_states, stage_input.residual
        else:
            vectors = self.model.embed(input_ids) if inputs_embeds is None else inputs_embeds
            x, residual = self.model.enter(vectors, positions), None
            inputs = self.model.inputs_of_layers(input_ids, x, batch)
        out: Tensor | StageTensors = self.model(x, residual, positions, batch, inputs)
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden]`."""
        if self.lm_head is None:
            raise RuntimeError("only the last pipeline stage computes logits")
        logits: Tensor = self.lm_head(self.model.embed_out(hidden_states))
        if self.config.logit_scale != 1.0:
            logits = logits.mul_(self.config.logit_scale)
        cap = self.config.final_logit_soft_cap
        return logits if cap is None else logits.float().div_(cap).tanh_().mul_(cap)

    def map_weight_name(self, name: str) -> str | None:
        """Return the name; None for weights of other pipeline stages."""
        match = self._rules.match(name)
        part = name if match is None else match.part_names()[0]
        return name if self._is_own(part) else None

    def _is_own(self, name: str) -> bool:
        """Return whether this stage has the weight, or no stage has (then it is unexpected)."""
        parts = name.split(".")
        if name in self.tied_weights:
            return self.model.embed_tokens is not None
        if parts[:2] == ["model", "layers"] and len(parts) > 2 and parts[2].isdigit():
            is_known = int(parts[2]) < len(self.config.layers)
            return not is_known or parts[2] in self.model.layers
        if parts[0] == "lm_head":
            return self.lm_head is not None
        if parts[:2] in (["model", "norm"], ["model", "project_out"]):
            return self.model.is_last
        if parts[0] == "model" and len(parts) > 1 and parts[1] in FIRST_STAGE:
            return self.model.is_first
        if parts[:2] == ["model", "embed_tokens"]:
            return self.model.embed_tokens is not None
        return True

    def _head(self, context: LayerContext) -> LMHead:
        config = self.config
        tied_to = self.model.embed_tokens if config.tie_word_embeddings else None
        size = config.embedding_size or config.hidden_size
        return LMHead(config.vocab_size, size, context, tied_to=tied_to, bias=config.head_bias)


def _listed_norms(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """Return the names of the norms of each query and key head, if they have one each."""
    attention = config.layers[0].attention
    if not isinstance(attention, AttentionConfig):
        return {}
    if attention.qk_norm is None or attention.qk_norm.over != "listed":
        return {}
    queries = tuple(f"q_norm.{head}" for head in range(attention.num_heads))
    keys = tuple(f"k_norm.{head}" for head in range(attention.num_kv_heads))
    return {"qk_norm": queries + keys}
