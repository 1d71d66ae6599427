"""Checks of a model against its reference, with an engine and without."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from quire import RequestOutput
from quire.testing.model.dense_attention import difference, logits_of
from quire.testing.model.model_scene import NUM_TOKENS, ModelScene, greedy
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks

LOGIT_TOLERANCE = 1e-4  # of the logits' spread
NUM_POSITIONS = 100
CHUNK = 17
MIN_DISTINCT = 8
NUM_POOLS = 4  # sizes of the KV cache to try until a request is preempted


def check_logits(scene: ModelScene) -> None:
    """Check the logits of every token of a prompt, without an engine."""
    token_ids = scene.token_ids(NUM_POSITIONS)
    logits = logits_of(scene.model, token_ids)
    _check_difference("a prompt at once", logits, scene.logits(token_ids))


def check_chunks(scene: ModelScene) -> None:
    """Check the logits of every token of a prompt in chunks, without an engine."""
    token_ids = scene.token_ids(NUM_POSITIONS, seed=2)
    starts = range(0, len(token_ids), CHUNK)
    chunks = [logits_of(scene.model, token_ids[i : i + CHUNK], i) for i in starts]
    _check_difference(f"a prompt in chunks of {CHUNK}", torch.cat(chunks), scene.logits(token_ids))


def check_ranks(scene: ModelScene, tp_size: int) -> None:
    """Check the logits of each rank of a tensor-parallel group, as threads of this process."""
    token_ids = scene.token_ids(NUM_POSITIONS)
    expected = scene.logits(token_ids)

    def logits_of_rank(group: ThreadedGroup) -> tuple[Tensor, int]:
        return logits_of(scene.loaded_model(group), token_ids), group.num_sums

    for rank, (logits, num_sums) in enumerate(run_ranks(tp_size, logits_of_rank)):
        _check_difference(f"rank {rank} of {tp_size}", logits, expected)
        assert num_sums > 0, f"rank {rank} of {tp_size}: no layer is divided over the ranks"


def check_tokens(
    scene: ModelScene,
    outputs: Sequence[RequestOutput],
    prompts: Sequence[Sequence[int]] | None = None,
) -> None:
    """Check that each token is the likeliest of the reference, with its log probability."""
    for prompt, output in zip(prompts or scene.prompts, outputs, strict=True):
        token_ids = list(output.outputs[0].token_ids)
        assert len(token_ids) == NUM_TOKENS, f"{len(token_ids)} tokens instead of {NUM_TOKENS}"
        logits = scene.logits(torch.tensor([*prompt, *token_ids[:-1]]))
        expected = logits.log_softmax(-1)[len(prompt) - 1 :]  # [NUM_TOKENS, V]
        _check_tokens_of(len(prompt), token_ids, logprobs_of(output), expected, scene.tolerance)


def check_variety(outputs: Sequence[RequestOutput]) -> None:
    """Check that there are many tokens: one repeated token would pass every other check."""
    distinct = set(chain.from_iterable(output.outputs[0].token_ids for output in outputs))
    assert len(distinct) >= MIN_DISTINCT, (
        f"all prompts together give {len(distinct)} distinct tokens; scale the random weights "
        f"so that there are at least {MIN_DISTINCT}"
    )


def check_prefix_hits(scene: ModelScene) -> None:
    """Check prompts that are computed in one step, and again as prefix cache hits."""
    with scene.llm() as llm:
        first = llm.generate(scene.prompts, greedy())
        again = llm.generate(scene.prompts, greedy())
    size = scene.options.get("block_size", scene.sizes.block_size)
    for output, prompt in zip(first, scene.prompts, strict=True):
        assert output.num_cached_tokens == 0, f"{len(prompt)} tokens are a hit the first time"
    for output, prompt in zip(again, scene.prompts, strict=True):
        hits, expected = output.num_cached_tokens, (len(prompt) - 1) // size * size
        assert hits == expected, (
            f"{hits} of {len(prompt)} tokens are prefix cache hits; whole blocks of {size} below "
            f"the last token are {expected}"
        )
    check_tokens(scene, first)
    check_tokens(scene, again)


def check_preemption(scene: ModelScene, short_lengths: Sequence[int] = ()) -> None:
    """Check prompts in chunks, with a KV cache so small that requests are preempted.

    The first size fits one request. With a short window a request frees as many blocks as it
    needs, so that requests may run one after the other in it; then it is a few blocks more.

    Args:
        scene: Scene of the model.
        short_lengths: Lengths of further prompts, of requests that grow while others run.
    """
    smallest = scene.smallest_pool()
    prompts = [*scene.prompts_of(short_lengths, seed=5), *scene.prompts]
    for num_blocks in range(smallest, smallest + NUM_POOLS):
        with scene.llm(
            num_kv_blocks=num_blocks,
            max_num_batched_tokens=scene.sizes.chunk,
            enable_prefix_caching=False,
        ) as llm:
            outputs = llm.generate(prompts, greedy())
            num_preemptions = llm.stats().num_preemptions
        check_tokens(scene, outputs, prompts)
        if num_preemptions:
            return
    raise AssertionError(
        f"no request was preempted with {smallest} to {smallest + NUM_POOLS - 1} KV blocks, so "
        "this test shows nothing"
    )


def check_same(
    scene: ModelScene,
    expected: Sequence[RequestOutput],
    outputs: Sequence[RequestOutput],
    how: str,
    expected_how: str = "alone",
) -> None:
    """Check that prompts have the same tokens and log probabilities, however computed."""
    for before, after in zip(expected, outputs, strict=True):
        length = len(before.prompt_token_ids)
        tokens, found = before.outputs[0].token_ids, after.outputs[0].token_ids
        assert found == tokens, (
            f"a prompt of {length} tokens {how} gives {found}; {expected_how} it gives {tokens}"
        )
        for one, other in zip(logprobs_of(before), logprobs_of(after), strict=True):
            assert abs(one - other) <= scene.tolerance, (
                f"a prompt of {length} tokens {how}: a log probability is {other:.5f}, and "
                f"{one:.5f} {expected_how}"
            )


def logprobs_of(output: RequestOutput) -> list[float]:
    """Return the log probability of each generated token."""
    completion = output.outputs[0]
    assert completion.logprobs is not None
    pairs = zip(completion.token_ids, completion.logprobs, strict=True)
    return [candidates[token_id].logprob for token_id, candidates in pairs]


def _check_tokens_of(
    length: int,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    expected: Tensor,  # [tokens, V]
    tolerance: float,
) -> None:
    for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        best = int(expected[index].argmax())
        margin = float(expected[index, best] - expected[index, token_id])
        assert margin <= tolerance, (
            f"a prompt of {length} tokens: token {index} is {token_id}; the reference has {best}, "
            f"more likely by {margin:.4f}"
        )
        error = abs(float(expected[index, token_id]) - logprob)
        assert error <= tolerance, (
            f"a prompt of {length} tokens: the log probability of token {index} differs from the "
            f"reference by {error:.5f}"
        )


def _check_difference(what: str, logits: Tensor, expected: Tensor) -> None:
    error = difference(logits, expected)
    assert error <= LOGIT_TOLERANCE, (
        f"{what}: the logits differ from the reference by {error:.5f} of their spread"
    )
