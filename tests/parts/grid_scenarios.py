"""What an engine has to do in the same way on one worker and on a grid of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from adapter_files import write_adapter
from grid_engine import Completion, Grid, GridEngine, grid_engine

from quire.messages import AdapterRef, EngineRequest
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire_lora.peft_source import PeftSource

TOLERANCE = 1e-4
STOP = 299
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (  # a vocabulary that does not divide, biases, an untied head
        "LlamaForCausalLM",
        {"vocab_size": 323, "attention_bias": True, "mlp_bias": True},
    ),
    "qwen2": (  # one key/value head for all ranks, a tied head, a vocabulary that does not divide
        "Qwen2ForCausalLM",
        {"vocab_size": 321, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": 9, "vocab_size": 322}),
}


def write_shape(folder: Path, shape: str) -> WrittenCheckpoint:
    """Write a checkpoint with two adapters in `adapter-0` and `adapter-1`."""
    architecture, config = SHAPES[shape]
    written = write_checkpoint(folder, architecture, **config)
    for index in range(2):
        write_random_adapter(written, index)
    return written


def write_random_adapter(written: WrittenCheckpoint, index: int) -> None:
    """Write an adapter on most matrices of all layers."""
    rng = torch.Generator().manual_seed(5 + index)
    tensors = {}
    for number, (name, weight) in enumerate(written.weights.items()):
        if not name.endswith("_proj.weight") or number % 7 == index:
            continue
        module = f"base_model.model.{name.removesuffix('.weight')}"
        rows, columns = weight.shape
        tensors[f"{module}.lora_A.weight"] = torch.randn(3, columns, generator=rng) * 0.1
        tensors[f"{module}.lora_B.weight"] = torch.randn(rows, 3, generator=rng) * 0.1
    write_adapter(written.folder / f"adapter-{index}", tensors, r=3, lora_alpha=6)


def adapter(folder: Path, index: int) -> AdapterRef:
    path = folder / f"adapter-{index}"
    return AdapterRef(f"adapter {index}", str(path), PeftSource().content_hash(path))


def tokens(num_tokens: int, seed: int = 1) -> list[int]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, 299, (num_tokens,), generator=rng).tolist()


def request(name: str, prompt: Sequence[int], **options: Any) -> EngineRequest:
    """A greedy request of ten tokens, with log probabilities; options of its params as well."""
    own = {key: options.pop(key) for key in ("adapter", "child", "seed") if key in options}
    values = {"temperature": 0, "max_tokens": 10, "logprobs": 2, **options}
    params = SamplingParams(**values)
    return EngineRequest(
        request_id=name,
        token_ids=list(prompt),
        params=params,
        max_tokens=values["max_tokens"],
        stop_token_ids=(STOP,),
        **{"seed": 7, **own},
    )


Outcome = dict[str, Completion]


@dataclass(frozen=True)
class Scenario:
    """Requests for an engine, and what must have happened to them.

    Attributes:
        run: Runs its requests.
        options: Options of the engine.
        check: Fails if the scenario did not show what it is for.
    """

    run: Callable[[GridEngine, Path], Outcome]
    options: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[GridEngine, Outcome], None] = lambda engine, outcome: None


def chunked(engine: GridEngine, folder: Path) -> Outcome:
    return engine.run([
        request("long", tokens(45), prompt_logprobs=2),
        request("short", tokens(3, 2), temperature=1.0, top_p=0.9),
        request("middle", tokens(23, 3), temperature=0.7, min_p=0.02, top_k=40),
        request("at least", tokens(9, 4), min_tokens=6, temperature=1.5),
    ])  # fmt: skip


def preempted(engine: GridEngine, folder: Path) -> Outcome:
    return engine.run([request(str(i), tokens(20, i), max_tokens=21) for i in range(6)])


def was_preempted(engine: GridEngine, outcome: Outcome) -> None:
    assert engine.core.stats().num_preemptions > 0


def prefix_hit(engine: GridEngine, folder: Path) -> Outcome:
    first = engine.run([request("first", tokens(30))])
    rest = [request("again", tokens(30)), request("longer", tokens(30) + tokens(11, 2))]
    return first | engine.run(rest)


def was_hit(engine: GridEngine, outcome: Outcome) -> None:
    assert outcome["first"].num_cached_tokens == 0
    assert outcome["again"].num_cached_tokens >= 20
    assert outcome["longer"].num_cached_tokens >= 20


def lora(engine: GridEngine, folder: Path) -> Outcome:
    prompt = tokens(12)
    return engine.run([
        request("base", prompt),
        request("one", prompt, adapter=adapter(folder, 0)),
        request("other", prompt, adapter=adapter(folder, 1), temperature=1.0),
        request("one again", tokens(5, 3), adapter=adapter(folder, 0)),
    ])  # fmt: skip


def adapters_differ(engine: GridEngine, outcome: Outcome) -> None:
    assert outcome["base"].token_ids != outcome["one"].token_ids != outcome["other"].token_ids


def several(engine: GridEngine, folder: Path) -> Outcome:
    prompt = tokens(14)
    return engine.run([request(str(i), prompt, child=i, temperature=1.0) for i in range(4)])


def children_differ(engine: GridEngine, outcome: Outcome) -> None:
    assert len({tuple(completion.token_ids) for completion in outcome.values()}) == 4


def grammar(engine: GridEngine, folder: Path) -> Outcome:
    bound = StructuredOutputsParams(regex="any")
    return engine.run([
        request("free", tokens(8)),
        request("bound", tokens(8), structured_outputs=bound),
        request("bound too", tokens(19, 2), structured_outputs=bound, temperature=1.0),
    ])  # fmt: skip


def follows_its_grammar(engine: GridEngine, outcome: Outcome) -> None:
    for name in ("bound", "bound too"):
        found = outcome[name].token_ids
        assert [token % 3 for token in found] == [index % 3 for index in range(len(found))]
    assert outcome["free"].token_ids != outcome["bound"].token_ids


def stored(engine: GridEngine, folder: Path) -> Outcome:
    """Prompts whose blocks are evicted and come back from the store."""
    first = engine.run([request(f"first {i}", tokens(40, i)) for i in range(3)])
    return first | engine.run([request(f"again {i}", tokens(40, i)) for i in range(3)])


def was_stored(engine: GridEngine, outcome: Outcome) -> None:
    assert engine.core.stats().num_store_hits > 0


def mixed(engine: GridEngine, folder: Path) -> Outcome:
    """All of it at once."""
    bound = StructuredOutputsParams(regex="any")
    prompt = tokens(26)
    first = engine.run([request("first", prompt, prompt_logprobs=1)])
    return first | engine.run([
        request("again", prompt),
        request("seen", prompt[:17], max_tokens=16),
        *(request(f"child {i}", tokens(9, 5), child=i, temperature=1.0) for i in range(2)),
        request("adapted", tokens(12, 6), adapter=adapter(folder, 0), max_tokens=16),
        request("other", tokens(21, 6), adapter=adapter(folder, 1), max_tokens=16),
        request("bound", tokens(8, 7), structured_outputs=bound, max_tokens=16),
    ])  # fmt: skip


def was_mixed(engine: GridEngine, outcome: Outcome) -> None:
    was_preempted(engine, outcome)
    assert outcome["again"].num_cached_tokens > 0
    found = outcome["bound"].token_ids
    assert [token % 3 for token in found] == [index % 3 for index in range(len(found))]


NO_PREFIXES = {"enable_prefix_caching": False}
SCENARIOS: dict[str, Scenario] = {
    "mixed": Scenario(
        mixed, {"max_num_batched_tokens": 16, "num_blocks": 18, "enable_lora": True}, was_mixed
    ),
    "chunked": Scenario(chunked, {"max_num_batched_tokens": 16, **NO_PREFIXES}),
    "preempted": Scenario(preempted, {"num_blocks": 24, **NO_PREFIXES}, was_preempted),
    "prefix hit": Scenario(prefix_hit, {}, was_hit),
    "lora": Scenario(lora, {"enable_lora": True}, adapters_differ),
    "several": Scenario(several, {}, children_differ),
    "grammar": Scenario(grammar, {}, follows_its_grammar),
    "stored": Scenario(stored, {"kv_store": "host_memory", "num_blocks": 30}, was_stored),
}


def run_scenario(folder: Path, name: str, grid: Grid, **options: Any) -> Outcome:
    """Run a scenario on a new engine."""
    scenario = SCENARIOS[name]
    options = {**scenario.options, **options}
    if folder.name == "gemma3" and "num_blocks" in options:
        options["num_blocks"] += options["num_blocks"] // 3  # its layers are three KV groups
    with grid_engine(folder, grid, **options) as engine:
        outcome = scenario.run(engine, folder)
        errors = {name: each.error for name, each in outcome.items() if each.error}
        assert not errors, errors
        scenario.check(engine, outcome)
        check_digests(engine)
    return outcome


def check_digests(engine: GridEngine) -> None:
    """Check that all ranks of the last stage sampled the same; a single one has no digests."""
    for digests in engine.runner.digests:
        assert len(set(digests)) == 1, "the ranks of the last stage sampled different tokens"
        assert bool(digests[0]) == (engine.grid.tp_size > 1)


def check_same(found: Outcome, expected: Outcome, tolerance: float = TOLERANCE) -> None:
    """Check tokens, errors and log probabilities."""
    assert found.keys() == expected.keys()
    for name, completion in expected.items():
        assert found[name].token_ids == completion.token_ids, name
        for kind in ("logprobs", "prompt_logprobs"):
            check_near(found[name].logprobs(kind), completion.logprobs(kind), tolerance)


def check_near(
    found: list[list[float]], expected: list[list[float]], tolerance: float = TOLERANCE
) -> None:
    assert [len(row) for row in found] == [len(row) for row in expected]
    differences = [
        abs(one - other)
        for row, other_row in zip(found, expected, strict=True)
        for one, other in zip(row, other_row, strict=True)
    ]
    assert max(differences, default=0.0) < tolerance
