"""One run from random weights to the checkpoint: Muon and AdamW, answers only.

One process a core, each with batches of its own, and one exchange of gradients a step: on a busy
machine that waits less than threads inside every operation would.

    torchrun --nproc-per-node 2 -m recipe.train --stage 1 --seed 1 --steps 5400
    torchrun --nproc-per-node 2 -m recipe.train --stage 2 --seed 2 --steps 4000
    torchrun --nproc-per-node 2 -m recipe.train --stage 3 --seed 4 --steps 7000
    torchrun --nproc-per-node 2 -m recipe.train --stage 4 --seed 5 --steps 3600
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from transformers import Qwen3Config, Qwen3ForCausalLM

from recipe.batches import IGNORED, Batch, training_batches
from recipe.template import CHECKPOINT
from recipe.tokenizer import CONTEXT, VOCAB_SIZE

TOKENS_A_BATCH = 1536  # of one process
PEAK_RATE = {1: 2e-3, 2: 1e-3, 3: 1e-3, 4: 6e-4}  # by stage
WARM_UP_STEPS = 100
SAVE_EVERY = 500
_PAD, _END = 0, 2  # <|endoftext|>, <|im_end|>


def new_model(seed: int) -> Qwen3ForCausalLM:
    """A small Qwen3 with random weights: 1.77 M parameters, 7.1 MB in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=192,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=512,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=_END,
        pad_token_id=_PAD,
        bos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy over the tokens of answers; only their logits are computed."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden_states = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
        labels = batch.labels[:, 1:]
        learned = labels != IGNORED
        logits = model.lm_head(hidden_states[:, :-1][learned])
    return cross_entropy(logits.float(), labels[learned])


def share_gradients(model: nn.Module) -> None:
    """Give every process the mean of all processes' gradients."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = parameters_to_vector(gradients)
    distributed.all_reduce(flat)
    vector_to_parameters(flat / distributed.get_world_size(), gradients)


def rate_at(step: int, steps: int) -> float:
    """The share of the peak rate at a step: up, level, and in the last third down to zero."""
    return min((step + 1) / WARM_UP_STEPS, 1.0, (steps - step) / (steps / 3))


def optimizers_for(model: nn.Module, peak_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    inner = {n: p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n}
    outer = [p for n, p in model.named_parameters() if n not in inner]
    return [
        torch.optim.Muon(
            list(inner.values()), peak_rate, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(outer, peak_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def save(model: Qwen3ForCausalLM, folder: Path) -> None:
    """Write weights and configs as float32 safetensors."""
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"rope_theta": config["rope_parameters"]["rope_theta"], "torch_dtype": "float32"}
    _write_json(folder / "config.json", config)
    generation = {"eos_token_id": [_END, _PAD], "pad_token_id": _PAD, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)


def train(stage: int, seed: int, steps: int, folder: Path) -> None:
    """Train a new model, or the one in `folder`, each process on batches of its own."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    model = new_model(seed) if stage == 1 else Qwen3ForCausalLM.from_pretrained(folder)
    optimizers = optimizers_for(model, PEAK_RATE[stage])
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
        for optimizer in optimizers
    ]
    rank, processes = distributed.get_rank(), distributed.get_world_size()
    stream = islice(training_batches(seed, TOKENS_A_BATCH, stage), rank, None, processes)
    started, recent = time.monotonic(), 0.0
    for step, batch in enumerate(islice(stream, steps), 1):
        loss = loss_of(model, batch)
        torch.autograd.backward(loss)
        share_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        recent = 0.98 * recent + 0.02 * loss.item() if recent else loss.item()
        if rank == 0 and step % 50 == 0:
            print(f"step {step} loss {recent:.4f} {time.monotonic() - started:.0f} s", flush=True)
        if rank == 0 and (step % SAVE_EVERY == 0 or step == steps):
            save(model, folder)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, choices=sorted(PEAK_RATE), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--folder", type=Path, default=CHECKPOINT)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    train(options.stage, options.seed, options.steps, options.folder)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
