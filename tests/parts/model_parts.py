"""Small real parts for tests of models: a model with dense attention, and its greedy tokens."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.interfaces.model import Model
from quire.layers import LayerContext, SingleDevice, TensorParallelGroup
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import CPU, bind_dense_attention, logits_of
from quire.testing.model.model_scene import ModelScene
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.family_table import describe

CONTEXT = LayerContext(dtype=torch.float32, device=CPU)


def make_model(
    config: dict[str, Any],
    *,
    tp: TensorParallelGroup | None = None,
    layers: range | None = None,
    prepack: bool = False,
) -> Model:
    """Build the model that a config.json names, with dense attention and undefined weights."""
    context = replace(CONTEXT, tp=tp or SingleDevice(), layers=layers, prepack=prepack)
    model = DecoderForCausalLM(describe(config), context)
    bind_dense_attention(model)
    return model


def load_model(checkpoint: WrittenCheckpoint, **options: Any) -> Model:
    model = make_model(checkpoint.config, **options)
    load_weights(model, checkpoint.folder)
    return model


def written_model(
    folder: Path, architecture: str, **config: Any
) -> tuple[WrittenCheckpoint, Model]:
    checkpoint = write_checkpoint(folder, architecture, **config)
    return checkpoint, load_model(checkpoint)


def greedy(model: Model, prompt: Tensor, num_tokens: int) -> list[int]:
    """The likeliest tokens after a prompt, one step each."""
    tokens = [int(logits_of(model, prompt)[-1].argmax())]
    while len(tokens) < num_tokens:
        start = len(prompt) + len(tokens) - 1
        tokens.append(int(logits_of(model, torch.tensor(tokens[-1:]), start)[-1].argmax()))
    return tokens


def check_greedy(scene: ModelScene) -> None:
    """Check greedy tokens without an engine, which are several."""
    prompt = scene.token_ids(20, seed=3)
    tokens = greedy(scene.model, prompt, 40)
    known = torch.tensor([*prompt.tolist(), *tokens])
    assert tokens == scene.logits(known)[len(prompt) - 1 : -1].argmax(-1).tolist()
    best = scene.logits(prompt).argmax(-1)
    assert torch.equal(logits_of(scene.model, prompt).argmax(-1), best)
    assert len({*tokens, *best.tolist()}) >= 5


def random_tokens(num_tokens: int, vocab_size: int = 320, seed: int = 1) -> Tensor:
    return torch.randint(vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(seed))
