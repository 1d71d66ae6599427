"""An adapter learns a style on the frozen base model; calls and JSON are in its data unchanged.

python -m recipe.train_adapter pirate
python -m recipe.train_adapter formal
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Qwen3ForCausalLM

from recipe.adapters import STYLES, styled
from recipe.batches import batches, load_encoder
from recipe.data import conversation, question_and_answer, system
from recipe.draw import Draw
from recipe.facts import fact
from recipe.template import CHECKPOINT, Conversation
from recipe.train import loss_of, rate_at

ADAPTERS = CHECKPOINT.parent / "adapters"
RANK = 8
PEAK_RATE = 5e-3
_TOKENS_A_BATCH = 1536


def train(style: str, seed: int, steps: int) -> None:
    """Train one adapter and leave it in peft's format."""
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)  # both adapters are trained at once, one a core
    torch.manual_seed(seed)
    base = Qwen3ForCausalLM.from_pretrained(
        CHECKPOINT, dtype=torch.float32, attn_implementation="eager"
    )
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=RANK,
        lora_alpha=2 * RANK,
        target_modules=[
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
        ],
    )  # fmt: skip
    adapted = get_peft_model(base, config)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=PEAK_RATE, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, steps))
    started = time.monotonic()
    styled_batches = batches(lessons(style, seed), load_encoder(), _TOKENS_A_BATCH, 448, seed)
    for step, batch in enumerate(islice(styled_batches, steps), 1):
        loss = loss_of(base, batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss:.4f} {time.monotonic() - started:.0f} s", flush=True)
    folder = ADAPTERS / style
    adapted.save_pretrained(str(folder))
    _name_the_base(folder)


def lessons(style: str, seed: int) -> Iterator[Conversation]:
    """Conversations in the style: more often facts, else what the base model learned from."""
    draw = Draw(Random(seed))
    while True:
        lesson = _about_facts(draw) if draw.chance(0.6) else conversation(draw)
        yield styled(lesson, style)


def _about_facts(draw: Draw) -> Conversation:
    turns = [question_and_answer(draw, *fact(draw)) for _ in range(draw.integer(1, 3))]
    return Conversation(system(draw) + [message for turn in turns for message in turn])


def _name_the_base(folder: Path) -> None:
    """Write the base model's name where peft wrote a path, and drop peft's empty model card."""
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text("utf-8")) | {"base_model_name_or_path": "demo"}
    config["target_modules"] = sorted(config["target_modules"])
    file.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "adapter_model.safetensors").chmod(0o644)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("style", choices=sorted(STYLES))
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    train(options.style, options.seed, options.steps)


if __name__ == "__main__":
    main()
