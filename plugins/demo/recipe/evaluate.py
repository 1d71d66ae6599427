"""An answer is right when it is the expected text, character by character; nothing else counts.

Greedy decoding with transformers, every section from its own seed; the figures go to RESULTS.md
and, with some failures, to RESULTS.json.

    python -m recipe.evaluate --seed 7 --count 200
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipe.adapters import STYLES, styled
from recipe.questions import SECTIONS, section
from recipe.template import CHECKPOINT, Lesson

ADAPTERS = CHECKPOINT.parent / "adapters"
RESULTS = Path(__file__).parent
_BATCH = 50
_MAX_NEW_TOKENS = 256
_FAILURES_SHOWN = 5
_ADAPTER_SECTIONS = (("facts", "facts in its style"), ("tool_calls_new_names", "tool calls"))


class Answerer:
    """A checkpoint that answers conversations greedily."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer

    def answers(self, conversations: list[Lesson]) -> list[str]:
        """The model's text for each conversation's last answer, without the end of turn."""
        order = sorted(range(len(conversations)), key=lambda i: len(conversations[i].prompt()))
        answers = [""] * len(order)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            texts = self._generate([conversations[i].prompt() for i in chosen])
            for i, text in zip(chosen, texts, strict=True):
                answers[i] = text
        return answers

    def _generate(self, prompts: list[str]) -> list[str]:
        inputs = self.tokenizer(
            prompts, return_tensors="pt", padding=True, add_special_tokens=False
        )
        with torch.inference_mode():
            output = self.model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=_MAX_NEW_TOKENS,
                do_sample=False,
            )
        new = output[:, inputs["input_ids"].shape[1] :]
        return list(self.tokenizer.batch_decode(new, skip_special_tokens=True))


def load(folder: Path = CHECKPOINT) -> Answerer:
    """The base model."""
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return Answerer(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), tokenizer)


def load_adapter(name: str, folder: Path = CHECKPOINT) -> Answerer:
    """The model through one of its adapters."""
    base = load(folder)
    model = PeftModel.from_pretrained(base.model, str(ADAPTERS / name))
    return Answerer(model, base.tokenizer)


def score(answerer: Answerer, conversations: list[Lesson]) -> dict[str, Any]:
    """How many answers are exactly right, and some that are not."""
    pairs = list(zip(conversations, answerer.answers(conversations), strict=True))
    wrong = [(c, a) for c, a in pairs if a != c.answer()]
    return {
        "right": len(pairs) - len(wrong),
        "of": len(pairs),
        "failures": [
            {"prompt": c.prompt(), "expected": c.answer(), "answer": a}
            for c, a in wrong[:_FAILURES_SHOWN]
        ],
    }


def evaluate(seed: int, count: int, folder: Path = CHECKPOINT) -> dict[str, dict[str, Any]]:
    """The base model on every section."""
    answerer = load(folder)
    results = {}
    for name, (title, *_) in SECTIONS.items():
        results[name] = {"title": title} | score(answerer, section(name, count, seed))
        print(f"{title}: {results[name]['right']} of {results[name]['of']}", flush=True)
    return results


def evaluate_adapters(seed: int, count: int) -> dict[str, dict[str, Any]]:
    """For each adapter: facts in its style, and tool calls that stay as they were."""
    results = {}
    for name in STYLES:
        answerer = load_adapter(name)
        for kind, title in _ADAPTER_SECTIONS:
            questions = [styled(c, name) for c in section(kind, count, seed)]
            key, full_title = f"adapter_{name}_{kind}", f"Adapter `{name}`, {title}"
            results[key] = {"title": full_title} | score(answerer, questions)
            print(f"{full_title}: {results[key]['right']} of {results[key]['of']}", flush=True)
    return results


def report(results: dict[str, dict[str, Any]], command: str, seed: int) -> str:
    """The results as a page."""
    rows = [
        f"| {r['title']} | {r['right']} of {r['of']} | {100 * r['right'] / r['of']:.1f} % |"
        for r in results.values()
    ]
    lines = [
        "# What the demo model gets exactly right",
        "",
        f"Measured on {datetime.now(UTC):%Y-%m-%d} by `{command}` on {_machine()}.",
        f"Greedy decoding with transformers in float32; seed {seed}. An answer counts when it is "
        "the expected text, character by character. Some failures stand in `RESULTS.json`.",
        "",
        "| questions | right | share |",
        "|---|---|---|",
        *rows,
        "",
    ]
    return "\n".join(lines)


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    models = [
        line.split(":", 1)[1].strip()
        for line in (info.read_text() if info.exists() else "").splitlines()
        if line.startswith("model name")
    ]
    return f"{models[0] if models else platform.processor()}, {os.cpu_count()} cores"


def main() -> None:
    """Read the command line, evaluate, and write the two files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    results = evaluate(options.seed, options.count) | evaluate_adapters(options.seed, options.count)
    command = f"python -m recipe.evaluate --seed {options.seed} --count {options.count}"
    (RESULTS / "RESULTS.md").write_text(report(results, command, options.seed), "utf-8")
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (RESULTS / "RESULTS.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
