"""The decoder that Llama and its descendants share; a model's file says only how it differs.

A step's hidden states travel as a pair: the output of the last block, and the residual that it is
still to be added to, so that addition and norm are one operation. Letters as in
`quire.interfaces.attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from quire.interfaces.model import ForwardBatch, Model, StageTensors
from quire.layers import (
    Attention,
    Layer,
    LayerContext,
    LMHead,
    MergedColumnParallelLinear,
    QKNorm,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowParallelLinear,
    SiluAndMul,
    VocabParallelEmbedding,
    rotate,
)
from quire.layers.rotary import Rotation
from quire_models.decoder_config import DecoderConfig


class DecoderAttention(Layer):
    """Grouped-query self-attention with a rotary embedding."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        name = f"model.layers.{layer}.self_attn"
        hidden, head_dim = config.hidden_size, config.head_dim
        heads = (config.num_heads, config.num_kv_heads, head_dim)
        self.qkv_proj = QKVParallelLinear(
            f"{name}.qkv_proj", hidden, *heads, bias=config.qkv_bias, context=context
        )
        self.qk_norm = QKNorm(*heads, config.rms_norm_eps, context) if config.has_qk_norm else None
        self.attention = Attention(
            config.attention_name(layer), *heads, scale=head_dim**-0.5, context=context
        )
        self.o_proj = RowParallelLinear(
            f"{name}.o_proj",
            config.num_heads * head_dim,
            hidden,
            bias=config.output_bias,
            context=context,
        )
        num_heads, num_kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        self.num_heads = num_heads
        self.num_rotated = num_heads + num_kv_heads
        self.shape = (-1, self.num_rotated + num_kv_heads, head_dim)

    def forward(self, x: Tensor, rotation: Rotation, batch: ForwardBatch) -> Tensor:
        """Attend: `[T, hidden] -> [T, hidden]`."""
        qkv = self.qkv_proj(x, batch.adapters).view(self.shape)  # [T, H + 2K, D]
        qk, v = qkv[:, : self.num_rotated], qkv[:, self.num_rotated :]
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        qk = rotate(qk, rotation)
        out = self.attention(qk[:, : self.num_heads], qk[:, self.num_heads :], v, batch)
        projected: Tensor = self.o_proj(out, batch.adapters)
        return projected


class DecoderMLP(Layer):
    """SwiGLU."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        name, hidden, width = (
            f"model.layers.{layer}.mlp",
            config.hidden_size,
            config.intermediate_size,
        )
        bias = config.mlp_bias
        parts = {"gate_proj": width, "up_proj": width}
        self.gate_up_proj = MergedColumnParallelLinear(
            f"{name}.gate_up_proj", hidden, parts, bias=bias, context=context
        )
        self.activation = SiluAndMul()
        self.down_proj = RowParallelLinear(
            f"{name}.down_proj", width, hidden, bias=bias, context=context
        )

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Transform each token by itself: `[T, hidden] -> [T, hidden]`."""
        gate_up = self.gate_up_proj(x, batch.adapters)
        out: Tensor = self.down_proj(self.activation(gate_up), batch.adapters)
        return out


class DecoderLayer(Layer):
    """Attention and MLP, each behind a norm."""

    def __init__(self, layer: int, config: DecoderConfig, context: LayerContext) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, context)
        self.self_attn = DecoderAttention(layer, config, context)
        self.post_attention_layernorm = RMSNorm(hidden, eps, context)
        self.mlp = DecoderMLP(layer, config, context)

    def forward(
        self, x: Tensor, residual: Tensor | None, rotation: Rotation, batch: ForwardBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the MLP's output and the residual that it is to be added to."""
        x, residual = self.input_layernorm(x, residual)
        x = self.self_attn(x, rotation, batch)
        x, residual = self.post_attention_layernorm(x, residual)
        return self.mlp(x, batch), residual


class DecoderStage(Layer):
    """The decoder layers of one pipeline stage, with the embedding if first, the norm if last."""

    def __init__(self, config: DecoderConfig, max_model_len: int, context: LayerContext) -> None:
        super().__init__()
        mine = context.layers if context.layers is not None else range(config.num_layers)
        is_first, is_last = mine.start == 0, mine.stop == config.num_layers
        needs_embedding = is_first or (is_last and config.tie_word_embeddings)
        sizes = (config.vocab_size, config.hidden_size)
        self.embed_tokens = VocabParallelEmbedding(*sizes, context) if needs_embedding else None
        self.layers = nn.ModuleDict(
            {str(layer): DecoderLayer(layer, config, context) for layer in mine}
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, context) if is_last else None
        self.rotary = RotaryEmbedding(config.head_dim, max_model_len, config.rope, context)
        self._in_order = tuple(self.layers.values())

    def embed(self, input_ids: Tensor | None) -> Tensor:
        """Return the vectors of token ids, `[T, hidden]`."""
        if self.embed_tokens is None or input_ids is None:
            raise RuntimeError("this pipeline stage needs the hidden states of the stage before it")
        vectors: Tensor = self.embed_tokens(input_ids)
        return vectors

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, batch: ForwardBatch
    ) -> Tensor | StageTensors:
        """Return `[T, hidden]` after the last norm, or what the next stage needs."""
        rotation = self.rotary(positions)
        for layer in self._in_order:
            x, residual = layer(x, residual, rotation, batch)
        if self.norm is None:
            return StageTensors(x, residual)
        normed: Tensor = self.norm(x, residual)[0]
        return normed


class DecoderForCausalLM(Layer, Model):
    """A decoder with a language-model head."""

    packed_modules: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "qk_norm": ("q_norm", "k_norm"),
    }
    ignored_weights: ClassVar[tuple[str, ...]] = (r".*\.rotary_emb\.inv_freq",)

    def __init__(self, config: DecoderConfig, max_model_len: int, context: LayerContext) -> None:
        super().__init__()
        self.config = config
        self.model = DecoderStage(config, max_model_len, context)
        self.lm_head = self._head(context) if self.model.norm is not None else None

    def forward(
        self,
        input_ids: Tensor | None,  # [T]
        positions: Tensor,  # [T]
        batch: ForwardBatch,
        inputs_embeds: Tensor | None = None,  # [T, hidden]
        stage_input: StageTensors | None = None,
    ) -> Tensor | StageTensors:
        """Return hidden states after the last norm, `[T, hidden]`, or the stage's tensors."""
        if stage_input is not None:
            x, residual = stage_input.hidden_states, stage_input.residual
        else:
            x = self.model.embed(input_ids) if inputs_embeds is None else inputs_embeds
            residual = None
        out: Tensor | StageTensors = self.model(x, residual, positions, batch)
        return out

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Return float32 logits `[N, V]` of the chosen rows `[N, hidden]`."""
        if self.lm_head is None:
            raise RuntimeError("only the last pipeline stage computes logits")
        logits: Tensor = self.lm_head(hidden_states)
        return logits

    def map_weight_name(self, name: str) -> str | None:
        """Leave out a tied head's own copy, and what other pipeline stages hold."""
        if self.config.tie_word_embeddings and name == "lm_head.weight":
            return None
        return name if self._is_mine(name) else None

    def _is_mine(self, name: str) -> bool:
        """Whether this stage has the weight, or nobody has (and then it is unexpected)."""
        parts = name.split(".")
        if parts[:2] == ["model", "layers"] and len(parts) > 2 and parts[2].isdigit():
            is_known = int(parts[2]) < self.config.num_layers
            return not is_known or parts[2] in self.model.layers
        if parts[0] == "lm_head":
            return self.lm_head is not None
        if parts[:2] == ["model", "norm"]:
            return self.model.norm is not None
        if parts[:2] == ["model", "embed_tokens"]:
            return self.model.embed_tokens is not None
        return True

    def _head(self, context: LayerContext) -> LMHead:
        config = self.config
        tied_to = self.model.embed_tokens if config.tie_word_embeddings else None
        return LMHead(config.vocab_size, config.hidden_size, context, tied_to=tied_to)
