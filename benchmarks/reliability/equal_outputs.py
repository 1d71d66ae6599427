"""R8 and R9: completions in any company, and log-likelihoods against transformers."""

import math
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from row import Limits, Measured
from served import Server, serve

LAYOUTS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM")
COMPARED = ("Qwen3ForCausalLM", "Gemma3ForCausalLM")  # full attention; windows too
MAX_MODEL_LEN = 120
NUM_TOKENS = 32
BLOCK_SIZE = 8
NUM_KV_BLOCKS = 60  # of the 100 and more that all requests need at their ends
UNCACHED = {"enable_prefix_caching": False}
MODES: dict[str, dict[str, Any]] = {
    "a batch": UNCACHED,
    "preemption": UNCACHED | {"num_kv_blocks": NUM_KV_BLOCKS},
    "chunks of 7": UNCACHED | {"max_num_batched_tokens": 7},
    "prefix hits": {},
    "all of these": {"num_kv_blocks": NUM_KV_BLOCKS, "max_num_batched_tokens": 19},
}
NUM_LIKELIHOODS = 40  # for each layout
MAX_DIFFERENCE = 1e-3


def same_completions(limits: Limits) -> Measured:
    """Compare completions in each mode with those that are computed alone, bit by bit."""
    del limits
    num_same, num, num_preemptions, num_hits = 0, 0, 0, 0
    for layout in COMPARED:
        with tempfile.TemporaryDirectory() as folder:
            prompts = _prompts(_write(Path(folder), layout))
            alone = _completions(folder, prompts, **UNCACHED, max_num_seqs=1)[0]
            for options in MODES.values():
                found, stats = _completions(folder, prompts, **options)
                num += len(found)
                num_same += sum(a == b for a, b in zip(found, [*alone, *alone], strict=True))
                num_preemptions += stats.num_preemptions
                num_hits += stats.num_prefix_hits
    text = (
        f"{num_same} of {num} completions with `--batch-invariant` have the tokens and the log "
        f"probabilities that they have alone, bit by bit: {', '.join(MODES)}; {len(COMPARED)} tiny "
        f"models, {num_preemptions} preemptions, {num_hits:,} cached tokens"
    )
    return Measured(text, num_same == num and num_preemptions > 0 and num_hits > 0)


def _write(folder: Path, layout: str) -> int:
    """Write a tiny checkpoint; returns the size of its vocabulary."""
    from quire.testing.checkpoints import write_checkpoint

    sizes = {"head_dim": 32} if layout == "Qwen3ForCausalLM" else {}
    return int(write_checkpoint(folder, layout, seed=11, **sizes).config["vocab_size"])


def _prompts(vocab_size: int) -> list[list[int]]:
    """Return prompts of many lengths, of which half begin alike."""
    rng = random.Random(8)
    system = [rng.randrange(3, vocab_size) for _ in range(33)]
    lengths = [1, 2, 7, 8, 9, 16, 30, 41, 48, 3, 22, 40]
    return [
        (system if index % 2 else []) + [rng.randrange(3, vocab_size) for _ in range(length)]
        for index, length in enumerate(lengths)
    ]


def _completions(
    folder: str, prompts: Sequence[list[int]], **options: Any
) -> tuple[list[Any], Any]:
    """Generate everything twice, as the second round may hit what the first left in the cache."""
    from quire import LLM, SamplingParams

    params = [
        SamplingParams(
            max_tokens=NUM_TOKENS, temperature=0.0 if index % 2 else 0.9, top_p=0.95, seed=index,
            logprobs=3, ignore_eos=True,
        )
        for index in range(len(prompts))
    ]  # fmt: skip
    fixed = {
        "dtype": "float32", "threads": 1, "block_size": BLOCK_SIZE, "max_model_len": MAX_MODEL_LEN
    }  # fmt: skip
    with LLM(folder, batch_invariant=True, **(fixed | options)) as llm:
        num_rounds = 1 if options.get("max_num_seqs") == 1 else 2
        outputs = [out for _ in range(num_rounds) for out in llm.generate(prompts, params)]
        stats = llm.stats()
    return [_fingerprint(output.outputs[0]) for output in outputs], stats


def _fingerprint(completion: Any) -> Any:
    rows = [{token: one.logprob for token, one in row.items()} for row in completion.logprobs]
    return completion.token_ids, rows


@dataclass(frozen=True)
class Likelihood:
    """The log probability of a continuation, and whether it is the greedy one."""

    logprob: float
    is_greedy: bool


def likelihoods(limits: Limits) -> Measured:
    """Compare log-likelihoods by `/v1/completions`, asked as lm-eval does, with transformers."""
    del limits
    worst, num, num_flags, num_greedy = 0.0, 0, 0, 0
    for layout in LAYOUTS:
        with tempfile.TemporaryDirectory() as folder:
            vocab_size = _write(Path(folder), layout)
            cases = _cases(Path(folder), vocab_size)
            with serve("--dtype", "float32", model=folder) as server:
                found = _served(server, cases)
            for (_, _, expected), mine in zip(cases, found, strict=True):
                worst = max(worst, abs(expected.logprob - mine.logprob))
                num_flags += expected.is_greedy == mine.is_greedy
                num_greedy += expected.is_greedy
            num += len(cases)
    text = (
        f"difference at most {worst:.1e}, {num_flags} of {num} flags equal ({num_greedy} true); "
        f"{len(LAYOUTS)} tiny models, requests as lm-eval sends them"
    )
    return Measured(text, worst <= MAX_DIFFERENCE and num_flags == num and 0 < num_greedy < num)


def _cases(folder: Path, vocab_size: int) -> list[tuple[list[int], int, Likelihood]]:
    """Return token ids, the length of their context, and what transformers says of the rest."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(9)
    cases = []
    for index in range(NUM_LIKELIHOODS):
        token_ids = [rng.randrange(3, vocab_size) for _ in range(rng.randint(2, 60))]
        length = rng.randint(1, len(token_ids) - 1)
        with torch.inference_mode():
            if index % 2:  # a continuation that is greedy, and one in which a token is not
                token_ids = _greedy(model, token_ids[:length], rng.randint(1, 8))
            rows = model(torch.tensor([token_ids])).logits[0].log_softmax(-1)
        chosen = [rows[at - 1, token_ids[at]].item() for at in range(length, len(token_ids))]
        best = rows[length - 1 : len(token_ids) - 1].argmax(-1).tolist()
        expected = Likelihood(math.fsum(chosen), best == token_ids[length:])
        cases.append((token_ids, length, expected))
    return cases


def _greedy(model: Any, token_ids: list[int], number: int) -> list[int]:
    import torch

    for _ in range(number):
        token_ids = [*token_ids, int(model(torch.tensor([token_ids])).logits[0, -1].argmax())]
    return token_ids


def _served(server: Server, cases: Sequence[tuple[list[int], int, Likelihood]]) -> list[Likelihood]:
    """Return the log-likelihoods by a server."""
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
    response = server.post("/v1/completions", body | {"prompt": [case[0] for case in cases]})
    response.raise_for_status()
    choices = sorted(response.json()["choices"], key=lambda choice: choice["index"])
    found = []
    for (_, length, _), choice in zip(cases, choices, strict=True):
        logprobs = choice["logprobs"]
        chosen = logprobs["token_logprobs"][length:-1]
        tops = logprobs["top_logprobs"][length:-1]
        is_greedy = all(max(top.values()) == one for top, one in zip(tops, chosen, strict=True))
        found.append(Likelihood(math.fsum(chosen), is_greedy))
    return found
