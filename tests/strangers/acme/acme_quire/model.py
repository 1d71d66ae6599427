"""Decoder with attention and MLP in parallel after one norm, and tied embeddings."""

from torch import nn
from torch.nn import functional

from acme_quire.model_config import attention_name
from quire.interfaces.model import Model
from quire.layers import (
    Attention,
    ColumnParallelLinear,
    Layer,
    LMHead,
    QKVParallelLinear,
    RotaryEmbedding,
    RowParallelLinear,
    VocabParallelEmbedding,
    rotate,
)
from quire.layers.attention.rope_parameters import RopeParameters


def layer_norm(width, context):
    """Return a norm with a bias: a model may use any module, not only those of `quire.layers`."""
    return nn.LayerNorm(width, dtype=context.dtype, device=context.device)


class AcmeLayer(Layer):
    """Decoder layer: x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, index, shape, context):
        super().__init__()
        width, heads, kv_heads, head_dim = shape
        name = f"layers.{index}"
        self.norm = layer_norm(width, context)
        sizes, parts = (width, heads, kv_heads, head_dim), ("q", "k", "v")
        self.qkv = QKVParallelLinear(f"{name}.qkv", *sizes, parts=parts, bias=True, context=context)
        self.attention = Attention(
            attention_name(index), heads, kv_heads, head_dim, head_dim**-0.5, context
        )
        self.out = RowParallelLinear(f"{name}.out", width, width, bias=False, context=context)
        self.up = ColumnParallelLinear(f"{name}.up", width, 4 * width, bias=False, context=context)
        self.down = RowParallelLinear(f"{name}.down", 4 * width, width, bias=False, context=context)
        self.heads = (self.attention.num_heads, self.attention.num_kv_heads, head_dim)

    def forward(self, x, rotation, batch):  # [T, hidden] -> [T, hidden]
        """Return the hidden states after the layer."""
        num_heads, num_kv_heads, head_dim = self.heads
        normed = self.norm(x)
        qkv = self.qkv(normed, batch.adapters).unflatten(1, (-1, head_dim))  # [T, H + 2K, D]
        qk, v = qkv[:, : num_heads + num_kv_heads], qkv[:, num_heads + num_kv_heads :]
        qk = rotate(qk, rotation)
        attended = self.attention(qk[:, :num_heads], qk[:, num_heads:], v, batch)
        hidden = functional.gelu(self.up(normed, batch.adapters))
        return x + self.out(attended, batch.adapters) + self.down(hidden, batch.adapters)


class AcmeForCausalLM(Layer, Model):
    """Acme's decoder with a language-model head."""

    packed_modules = {"qkv": ("q", "k", "v")}  # noqa: RUF012 - as the interface has it

    def __init__(self, description, context):
        super().__init__()
        width, heads = description.hidden_size, description.num_heads
        layer = description.kv_layers[0]
        shape = (width, heads, layer.num_kv_heads, layer.head_dim)
        self.embed = VocabParallelEmbedding(description.vocab_size, width, context)
        self.layers = nn.ModuleList(
            AcmeLayer(index, shape, context) for index in range(description.num_layers)
        )
        self.norm = layer_norm(width, context)
        self.head = LMHead(description.vocab_size, width, context, tied_to=self.embed)
        rope = RopeParameters(theta=10000.0)
        self.rotary = RotaryEmbedding(layer.head_dim, description.max_model_len, rope, context)

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        """Return hidden states after the last norm, `[T, hidden]`."""
        x = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        rotation = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, rotation, batch)
        return self.norm(x)

    def compute_logits(self, hidden_states):
        """Return float32 logits `[N, V]`."""
        return self.head(hidden_states)
