"""Repetition of a pattern of tokens at the end of a completion."""

from collections.abc import Sequence

from quire.sampling_params import RepetitionDetectionParams


def ends_in_repetition(
    token_ids: Sequence[int], num_prompt_tokens: int, params: RepetitionDetectionParams
) -> bool:
    """Whether a completion ends with one pattern, `min_count` times in a row.

    Args:
        token_ids: Tokens of the prompt and the completion.
        num_prompt_tokens: Number of tokens of the prompt, which are no part of a pattern.
        params: Sizes of the patterns, and the count.
    """
    num_tokens, count = len(token_ids) - num_prompt_tokens, params.min_count
    longest = min(params.max_pattern_size, num_tokens // count)
    last = token_ids[-1]
    for size in range(params.min_pattern_size, longest + 1):
        if token_ids[-1 - size] != last:
            continue
        if token_ids[-size * (count - 1) :] == token_ids[-size * count : -size]:
            return True
    return False
