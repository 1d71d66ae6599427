"""Head of a transformers causal model, apart from its body: hidden states to logits.

A causal model of transformers computes its body, its head, and what a family does to the logits (a
soft cap, a factor) in one function. Here a module that returns given hidden states takes the body's
place, so that the function computes the rest alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from quire.errors import UnsupportedModelError


class GivenOutput:
    """Output of a body, as far as causal models read it: hidden states, and nothing else.

    Args:
        hidden_states: `[1, N, hidden]`.
    """

    def __init__(self, hidden_states: Tensor | None) -> None:
        self.last_hidden_state = hidden_states

    def __getitem__(self, index: int) -> Tensor | None:
        """Return the first field."""
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        """Return None for the other fields, which families copy to their output."""
        if name.startswith("__"):
            raise AttributeError(name)


class GivenHiddenStates(nn.Module):
    """Module in the place of a model's body, which returns hidden states that it is given.

    It stands for the body's children as well: some causal models call one of them.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.hidden_states: Tensor | None = None  # [1, N, hidden]
        vars(self).update((name, self) for name, _ in body.named_children())

    def forward(self, *args: object, **kwargs: object) -> GivenOutput:
        """Return the given hidden states."""
        del args, kwargs
        return GivenOutput(self.hidden_states)


class ModelHead:
    """The head of a causal model.

    Args:
        model: Model.

    Attributes:
        body_name: Name of the body in the model.
        body: The rest of the model, which computes hidden states.
        embedding: The embedding of tokens.
        embedding_path: Path of the embedding in the model.
        linear: The head's linear layer.
        linear_path: Path of the head's linear layer in the model.
        is_tied: Whether its weight is the embedding's.
        tied_weights: Other names of parameters that the head shares -> name of the one that is
            kept, as `Model.tied_weights`. BERT has its head's bias under two.
        vocab_size: Number of rows of its weight.

    Raises:
        UnsupportedModelError: The model has no such parts.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        linear, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if type(linear) is not nn.Linear or not isinstance(embedding, nn.Embedding):
            raise UnsupportedModelError("it has no linear head, or no embedding of tokens")
        paths = {module: path for path, module in model.named_modules()}
        self.embedding_path, self.linear_path = paths[embedding], paths[linear]
        self.body_name, dot, _ = self.embedding_path.partition(".")
        if not dot or self.linear_path.startswith(f"{self.body_name}."):
            raise UnsupportedModelError("it has no body apart from its head")
        self.body: nn.Module = model.get_submodule(self.body_name)
        self.linear, self.embedding = linear, embedding
        self.is_tied = linear.weight is embedding.weight
        self.vocab_size: int = linear.weight.shape[0]
        bias_path = f"{self.linear_path}.bias"
        self._copies = [
            path
            for path, parameter in model.named_parameters(remove_duplicate=False)
            if parameter is linear.bias and path != bias_path
        ]
        self.tied_weights = dict.fromkeys(self._copies, bias_path)
        if self.is_tied:
            self.tied_weights[f"{self.linear_path}.weight"] = f"{self.embedding_path}.weight"
        self._model = model
        self._given = GivenHiddenStates(self.body)

    def drop_copies_of_the_bias(self) -> None:
        """Remove the bias from modules that only share it: the head's layer adds it."""
        for path in self._copies:
            module, _, name = path.rpartition(".")
            self._model.get_submodule(module).register_parameter(name, None)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Put the given hidden states in the place of the body while the context is open."""
        self.attach()
        try:
            yield
        finally:
            setattr(self._model, self.body_name, self.body)

    def attach(self) -> None:
        """Put the given hidden states in the place of the body, from now on."""
        setattr(self._model, self.body_name, self._given)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """Return logits `[N, V]` of hidden states `[N, hidden]`, after `attach`."""
        self._given.hidden_states = hidden_states[None]
        any_ids = hidden_states.new_zeros(1, len(hidden_states), dtype=torch.int64)
        try:
            logits: Tensor = self._model(input_ids=any_ids, use_cache=False).logits
        finally:
            self._given.hidden_states = None
        return logits[0]
