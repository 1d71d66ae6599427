"""Models of transformers: the reference for tokens and logits."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def transformers_model(folder: Path, **options: Any) -> Any:
    """Return transformers' model of a checkpoint, in float32.

    Its import makes a million objects. They are excluded from garbage collection, as in
    `conftest.py`, because the engines that are compared with it collect garbage.
    """
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    gc.freeze()
    return model


@torch.inference_mode()
def greedy_tokens(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """Return the completion of a prompt by a model of transformers, without an end."""
    token_ids = torch.tensor([prompt])
    with one_thread():
        out = model.generate(
            input_ids=token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return out[0, len(prompt) :].tolist()


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, whatever an engine in this process has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
