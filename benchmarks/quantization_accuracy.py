"""Accuracy of the quantization methods.

    python benchmarks/quantization_accuracy.py [--count N] [--write]

Perplexity and right answers of the demo model, on questions with names that its training never
used: trained weights, so the effect on users. And the error of weights and of logits on random
bfloat16 checkpoints of whole models, compared with a float32 computation of the same weights:
figures that do not depend on the training of a model.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from quire import LLM, SamplingParams
from quire.cli.bench.interval import bootstrap
from quire.cli.bench.model_shapes import write_shape
from quire.cli.bench.tables import machine_info, markdown_lines
from quire.errors import NativeUnavailableError
from quire.interfaces.attention import AttentionBackend, AttentionShape
from quire.interfaces.model import ForwardBatch, Model
from quire.layers import Attention, LayerContext
from quire.layers.embedding import LMHead
from quire.layers.linear.linear_layers import ParallelLinear
from quire.machine import instruction_sets
from quire.native.availability import native_unavailable_reason
from quire.plugins.loading import load_plugins
from quire.plugins.registry import import_reference
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers
from quire.worker.loading.weight_loading import (
    as_module,
    held_weight_bytes,
    load_weights,
    weight_targets,
)

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
UNCHANGED = "none"
BFLOAT16 = "bfloat16"  # no method: the compute dtype, with the method of the name bf16
METHODS = (UNCHANGED, "bf16", BFLOAT16, "int8_weight_only", "int8", "int4_weight_only", "int4")
SECTIONS = ("tool_calls_new_names", "extractions_new_names", "sums", "facts_new_wordings")
MAX_ANSWER_TOKENS = 256
NUM_TOKENS, NUM_PROMPTS = 128, 4  # of random tokens
ROWS_AT_ONCE = 8192
CPU = torch.device("cpu")
REGISTRIES = load_plugins().registries
RANDOM_MODELS = ("5m", "qwen3-0.6b")


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its 95 % bootstrap interval over the questions."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Answered:
    """Results of one method on the demo model's questions, by answer.

    Attributes:
        surprise: Sum of the negative log probabilities of each right answer's tokens.
        num_tokens: Number of tokens of each right answer.
        is_right: Whether the model's own answer is the right one, character by character.
    """

    surprise: Sequence[float]
    num_tokens: Sequence[int]
    is_right: Sequence[bool]


@dataclass(frozen=True, slots=True)
class DemoFigures:
    """Figures of the demo model.

    Attributes:
        perplexity: Perplexity of the tokens of right answers: all that the model was trained for.
        more: Relative increase of perplexity over the unchanged weights.
        right: Fraction of its own answers that are right.
        lost: Number of answers that are right with the unchanged weights, and wrong now.
        won: Number of answers that are wrong with the unchanged weights, and right now.
    """

    method: str
    perplexity: float
    more: Interval
    right: Interval
    lost: int
    won: int


@dataclass(frozen=True, slots=True)
class RandomFigures:
    """Errors of a random model relative to the root mean square of the exact one.

    Attributes:
        weights: Root mean square of the errors of the weights of linear layers.
        logits: Root mean square of the errors of the logits.
        largest: Largest error of a logit.
        same_top: Fraction of tokens whose likeliest successor is the same.
        weight_bytes: Bytes of the model in memory.
    """

    model: str
    method: str
    weights: float
    logits: float
    largest: float
    same_top: float
    weight_bytes: int


class WholePrompt(AttentionBackend):
    """Attention by its definition for one prompt in one step; K and V are rounded as by a cache."""

    @classmethod
    def kv_view(cls, raw: Tensor, spec: Any, num_blocks: int) -> Tensor:
        """Return the bytes as they are."""
        del spec, num_blocks
        return raw

    def prepare(self, step: Any) -> None:
        """Prepare nothing."""

    def forward(
        self,
        q: Tensor,  # [T, H, D]
        k: Tensor,  # [T, K, D]
        v: Tensor,
        kv_cache: Tensor,
        metadata: Any,
        layer: Any,
    ) -> Tensor:  # [T, H, D]
        """Attend to the tokens before each token."""
        del kv_cache, metadata
        stored: torch.dtype = getattr(torch, self.shape.kv_dtype)
        k, v = k.to(stored).to(q.dtype), v.to(stored).to(q.dtype)
        heads = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q, k, v))
        attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=True)
        out: Tensor = attend(*heads, scale=layer.scale, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)


def serving_methods() -> list[str]:
    """Return the methods that this processor can serve."""
    chosen, flags = instruction_sets.here(), instruction_sets.cpu_flags()
    is_served = instruction_sets.bf16_unavailable_reason(chosen, flags) is None
    return [method for method in METHODS if method != BFLOAT16 or is_served]


def measure_demo(count: int, seed: int = 7) -> tuple[int, list[DemoFigures]]:
    """Run the demo model with each method; returns its number of parameters, too."""
    sys.path.insert(0, str(ROOT / "plugins" / "demo"))  # the recipe is not part of the package
    from recipe.questions import section

    conversations = [asked for name in SECTIONS for asked in section(name, count, seed)]
    prompts = [asked.prompt() for asked in conversations]
    answers = [asked.answer() for asked in conversations]
    found = {method: _ask(method, prompts, answers) for method in serving_methods()}
    return _num_numbers(), [demo_figures(name, found[name], found[UNCHANGED]) for name in found]


def demo_figures(method: str, found: Answered, exact: Answered) -> DemoFigures:
    """Compare the results of a method with those of the unchanged weights."""
    pairs = [*zip(found.is_right, exact.is_right, strict=True)]

    def more(chosen: Sequence[int]) -> float:
        return perplexity(found, chosen) / perplexity(exact, chosen) - 1

    def right(chosen: Sequence[int]) -> float:
        return sum(found.is_right[index] for index in chosen) / len(chosen)

    return DemoFigures(
        method,
        perplexity(found, range(len(pairs))),
        interval(len(pairs), more),
        interval(len(pairs), right),
        sum(was and not is_now for is_now, was in pairs),
        sum(is_now and not was for is_now, was in pairs),
    )


def perplexity(found: Answered, chosen: Sequence[int]) -> float:
    """Return the perplexity over some of the answers."""
    surprise = sum(found.surprise[index] for index in chosen)
    return math.exp(surprise / sum(found.num_tokens[index] for index in chosen))


def interval(count: int, figure: Callable[[Sequence[int]], float]) -> Interval:
    """Return a figure of questions with its 95 % bootstrap interval."""
    every = range(count)
    return Interval(figure(every), *bootstrap(every, figure))


def measure_random(shape: str) -> Iterator[RandomFigures]:
    """Compare a random model in each method with the exact one."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        write_random(checkpoint, shape)
        exact_model = _model(checkpoint, UNCHANGED)
        exact = _logits(exact_model)
        for method in serving_methods():
            model = exact_model if method == UNCHANGED else _model(checkpoint, method)
            yield _compare(shape, method, model, exact_model, exact)


def write_random(folder: Path, shape: str, seed: int = 0) -> None:
    """Write bfloat16 weights that keep hidden states in a sane range, as `load_format=dummy`."""
    write_shape(folder, shape)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, target in weight_targets(_empty_model(folder, UNCHANGED)).items():
        values = torch.randn(target.shape, generator=generator)
        if len(target.shape) > 1:
            values.mul_(target.shape[-1] ** -0.5)
        else:
            values.mul_(0.1).add_(1.0 if "norm" in name else 0.0)
        weights[name] = values.bfloat16()
    save_file(weights, folder / "model.safetensors")


def _ask(method: str, prompts: Sequence[str], answers: Sequence[str]) -> Answered:
    with_logprobs = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    greedy = SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=0)
    options = {"dtype": "float32", "quantization": method}
    if method == BFLOAT16:
        options = {"dtype": BFLOAT16}
    with LLM("demo", kernels="native", **options) as llm:
        encode = llm.get_tokenizer().encode
        starts = [len(encode(prompt)) for prompt in prompts]
        whole = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        outputs = llm.generate(whole, with_logprobs)
        written = [output.outputs[0].text for output in llm.generate(list(prompts), greedy)]
    logprobs = []
    for output, start in zip(outputs, starts, strict=True):
        known = zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True)
        known_logprobs = [found[token].logprob for token, found in known if found is not None]
        logprobs.append(known_logprobs[start - 1 :])  # nothing predicts the first token
    return Answered(
        [-sum(of_answer) for of_answer in logprobs],
        [len(of_answer) for of_answer in logprobs],
        [text == answer for text, answer in zip(written, answers, strict=True)],
    )


def _num_numbers() -> int:
    folder = REGISTRIES.checkpoints.get("demo")().folder
    stored = read_headers(find_weight_files(folder))
    return sum(math.prod(tensor.shape) for tensor in stored.values())


def _compare(
    shape: str, method: str, model: Model, exact_model: Model, exact: Tensor
) -> RandomFigures:
    logits = exact if model is exact_model else _logits(model)
    misses = logits - exact
    scale = exact.square().mean().sqrt()
    return RandomFigures(
        shape,
        method,
        _weight_error(model, exact_model),
        float(misses.square().mean().sqrt() / scale),
        float(misses.abs().max() / scale),
        float((logits.argmax(-1) == exact.argmax(-1)).float().mean()),
        held_weight_bytes(model),
    )


@torch.inference_mode()
def _weight_error(model: Model, exact_model: Model) -> float:
    """Return the error of the weights of linear layers."""
    if model is exact_model:
        return 0.0
    missed = total = 0.0
    exact = dict(_linear_layers(exact_model))
    for name, layer in _linear_layers(model):
        weight = exact[name].get_parameter("weight")
        for ids in torch.arange(len(weight)).split(ROWS_AT_ONCE):
            kept = layer.method.rows(layer, ids)
            missed += float((kept - weight[ids]).double().square().sum())
            total += float(weight[ids].double().square().sum())
    return math.sqrt(missed / total)


def _linear_layers(model: Model) -> Iterator[tuple[str, ParallelLinear | LMHead]]:
    for name, module in as_module(model).named_modules():
        if isinstance(module, ParallelLinear | LMHead):
            yield name, module


@torch.inference_mode()
def _logits(model: Model) -> Tensor:
    """Return the logits of random prompts, `[tokens, V]`."""
    heads = (module for module in as_module(model).modules() if isinstance(module, LMHead))
    vocab_size = next(heads).vocabulary.vocab_size
    generator = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(NUM_PROMPTS):
        ids = torch.randint(vocab_size, (NUM_TOKENS,), generator=generator)
        batch = ForwardBatch(attention=[None])
        hidden_states = model.forward(ids, torch.arange(NUM_TOKENS), batch)
        rows.append(model.compute_logits(hidden_states).float())  # type: ignore[arg-type]
    return torch.cat(rows)


def _model(folder: Path, method: str) -> Model:
    """Load a checkpoint."""
    model = _empty_model(folder, method)
    load_weights(model, folder)
    for module in as_module(model).modules():
        if isinstance(module, Attention):
            module.bind(_attention(module, method), torch.empty(0), 0)
    return model


def _empty_model(folder: Path, method: str) -> Model:
    """Build a model as `config.json` says; exact products are torch's own."""
    quantization = None
    if method == BFLOAT16:
        bf16: Any = REGISTRIES.quantizations.get("bf16").from_config({})
        quantization = bf16.for_dtype(BFLOAT16)
    elif method != UNCHANGED:
        quantization = REGISTRIES.quantizations.get(method).from_config({})
    context = LayerContext(
        dtype=torch.float32,
        device=CPU,
        quantization=quantization,
        kernels="torch" if quantization is None else "native",
    )
    entry = REGISTRIES.models.entry("Qwen3ForCausalLM")
    describe: Any = import_reference(entry.capabilities.describe, "the description")
    model: Any = REGISTRIES.models.load(entry)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    built: Model = model(describe(config), context)
    return built


def _attention(layer: Attention, method: str) -> WholePrompt:
    return WholePrompt(
        AttentionShape(
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            block_size=1,
            max_num_seqs=1,
            max_num_batched_tokens=NUM_TOKENS,
            max_blocks_per_request=NUM_TOKENS,
            dtype=torch.float32,
            kv_dtype=BFLOAT16 if method == BFLOAT16 else "float32",
            device=CPU,
        )
    )


def report(figures: Mapping[str, Any]) -> str:
    """Write the figures, as they stand in the JSON file, as Markdown."""
    about = [f"{name.replace('_', ' ')}: {value}" for name, value in figures["machine"].items()]
    demo, random_models = figures["demo"], figures["random"]
    demo_rows = [
        [
            each["method"],
            f"{each['perplexity']:.4f}",
            _in_percent(each["more"], "+.2f"),
            _in_percent(each["right"], ".1f"),
            str(each["lost"]),
            str(each["won"]),
        ]
        for each in demo
    ]
    random_rows = [
        [
            each["model"],
            each["method"],
            f"{each['weight_bytes'] / 1e6:.1f}",
            f"{100 * each['weights']:.2f} %",
            f"{each['logits']:.1e}",
            f"{each['largest']:.1e}",
            f"{100 * each['same_top']:.1f} %",
        ]
        for each in random_models
    ]
    demo_head = ("method", "perplexity", "increase", "right answers", "lost", "won")
    random_head = (
        "model", "method", "MB", "error of weights", "of logits", "at most", "same likeliest token",
    )  # fmt: skip
    is_there = any(each["method"] == BFLOAT16 for each in random_models)
    about_bfloat16 = [
        "`bfloat16` is the compute dtype, and the default of bfloat16 checkpoints on processors "
        "that multiply it: the weights of `bf16`, and bfloat16 in the inputs of products and in "
        "the KV cache. The methods are measured in float32, with a float32 KV cache.",
        "",
    ]
    lines = [
        "# Accuracy of quantized weights",
        "",
        f"`{figures['command']}`",
        "",
        "; ".join(about),
        "",
        *(about_bfloat16 if is_there else ()),
        f"**The demo model** ({figures['num_numbers'] / 1e6:.2f} million parameters, float32 "
        f"checkpoint) on {figures['num_questions']} questions with names, sums or wordings that "
        "its training never used. Perplexity is of the right answers, all that it was trained to "
        "generate: it is close to 1, so it shows little. In brackets 95 % bootstrap intervals over "
        "the questions. Lost: own answers that are wrong now and right with the unchanged weights; "
        "won: the reverse.",
        "",
        *markdown_lines(demo_head, demo_rows),
        "",
        "**Random models**, all their layers, with bfloat16 weights, compared with a float32 "
        "computation of the same weights: root mean square errors of weights and logits relative "
        f"to their root mean square, over {NUM_PROMPTS} prompts of {NUM_TOKENS} random tokens. "
        "Weights are normally distributed with a variance of one by the number of inputs; with "
        "`int4` the head, tied to the embedding, is `int8`. Random logits are close together, so "
        "the likeliest token changes more easily than in a trained model.",
        "",
        *markdown_lines(random_head, random_rows),
        "",
    ]
    return "\n".join(lines)


def _in_percent(figure: Mapping[str, float], form: str) -> str:
    value, low, high = (format(100 * figure[name], form) for name in ("value", "low", "high"))
    return f"{value} % ({low} to {high})"


def measure(count: int) -> dict[str, Any]:
    """Measure all figures.

    Raises:
        NativeUnavailableError: There are no compiled kernels, so other code would be measured.
    """
    if (reason := native_unavailable_reason()) is not None:
        raise NativeUnavailableError(f"the quantization methods need compiled kernels: {reason}")
    chosen = instruction_sets.here()
    machine = {
        "kernels": "native",
        "instruction_set": chosen if isinstance(chosen, str) else chosen.name,
        "torch": torch.__version__,
    }
    num_numbers, demo = measure_demo(count)
    return {
        "command": f"python benchmarks/quantization_accuracy.py --count {count} --write",
        "machine": machine_info() | machine,
        "num_numbers": num_numbers,
        "num_questions": count * len(SECTIONS),
        "demo": [asdict(each) for each in demo],
        "random": [asdict(each) for shape in RANDOM_MODELS for each in measure_random(shape)],
    }


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="questions of each kind")
    parser.add_argument("--write", action="store_true", help=f"write to {RESULTS.name}/")
    arguments = parser.parse_args()
    figures = measure(arguments.count)
    print(report(figures))
    if arguments.write:
        (RESULTS / "quantization.md").write_text(report(figures))
        (RESULTS / "quantization.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
