"""What the machine allows: the time below which no engine can be, from bytes, operations and rates.

A decode step reads every weight once and the KV of every request; a prefill multiplies. The rates
are those that the same run measured with plain copies and matrix products, not the data sheet's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BYTES = 2  # bfloat16, weights and KV


@dataclass(frozen=True, slots=True)
class Rates:
    """What a device was measured to do.

    Attributes:
        copy_bytes_s: Bytes read and written by a large copy, a second.
        matmul_flop_s: Of a large bfloat16 matrix product, a second.
    """

    copy_bytes_s: float
    matmul_flop_s: float


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a token costs a model.

    Attributes:
        body_params: Numbers in the layers' matrices.
        head_params: Numbers in the language-model head.
        kv_bytes: K and V of one token, over all layers.
        attention_flop: Of one query and one key, over all layers and heads: two products.
    """

    body_params: int
    head_params: int
    kv_bytes: int
    attention_flop: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> ModelCost:
        """Read the sizes of a Llama-like decoder from its config.json."""
        hidden, head_dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        layers = config["num_hidden_layers"]
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
        mlp = 3 * hidden * config["intermediate_size"]
        return cls(
            body_params=layers * (attention + mlp),
            head_params=hidden * config["vocab_size"],
            kv_bytes=2 * layers * kv_heads * head_dim * BYTES,
            attention_flop=4 * layers * heads * head_dim,
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes that a step reads of the weights."""
        return (self.body_params + self.head_params) * BYTES

    def decode_s(self, rates: Rates, contexts: Iterable[int]) -> float:
        """Return the shortest time of a step in which each request decodes one token."""
        lengths = list(contexts)
        flop = 2 * (self.body_params + self.head_params) * len(lengths)
        products = max(self.weight_bytes / rates.copy_bytes_s, flop / rates.matmul_flop_s)
        return products + sum(lengths) * self.kv_bytes / rates.copy_bytes_s

    def prefill_s(self, rates: Rates, num_tokens: int) -> float:
        """Return the shortest time to compute a prompt; attention is causal."""
        flop = 2 * self.body_params * num_tokens + 2 * self.head_params
        flop += self.attention_flop * num_tokens * num_tokens / 2
        return flop / rates.matmul_flop_s

    def mixed_s(self, rates: Rates, lengths: Iterable[tuple[int, int]], max_batch: int) -> float:
        """Return the shortest time of prompts and completions that all come at once.

        Args:
            rates: What the device can do.
            lengths: Number of tokens of each prompt and of its completion.
            max_batch: Requests that decode together, at most.
        """
        requests = list(lengths)
        if len(requests) > max_batch:
            raise ValueError(f"{len(requests)} requests do not decode together in {max_batch}")
        prefill = sum(self.prefill_s(rates, num_in) for num_in, _ in requests)
        longest = max(num_out for _, num_out in requests)
        steps = (
            [num_in + step for num_in, num_out in requests if num_out > step]
            for step in range(1, longest)
        )
        return prefill + sum(self.decode_s(rates, contexts) for contexts in steps if contexts)
