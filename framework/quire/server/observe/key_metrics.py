"""The metrics of each API key, by its name; without keys there are none."""

from collections.abc import Callable

from quire.server.keys.ledger import KeyUsage
from quire.server.observe.metric import Counter, Metric, Rows
from quire.server.observe.readings import Readings

KEY = ("key",)


def _of_keys(read: Callable[[KeyUsage], int]) -> Callable[[Readings], Rows]:
    """Return a function that reads a count of each key."""
    return lambda readings: [((each.name,), read(each.usage)) for each in readings.key_accounts()]


KEY_METRICS: tuple[Metric, ...] = (
    Counter(
        "quire_key_requests_total",
        "Number of requests with an API key that were let in, of those that its limits count.",
        KEY,
        _of_keys(lambda usage: usage.num_requests),
        is_shared=True,
    ),
    Counter(
        "quire_key_refused_requests_total",
        "Number of requests that a limit of their API key refused.",
        KEY,
        _of_keys(lambda usage: usage.num_refused),
        is_shared=True,
    ),
    Counter(
        "quire_key_prompt_tokens_total",
        "Number of tokens of prompts of an API key, cached ones included.",
        KEY,
        _of_keys(lambda usage: usage.num_prompt_tokens),
        is_shared=True,
    ),
    Counter(
        "quire_key_cached_prompt_tokens_total",
        "Number of tokens of those prompts that were found in the prefix cache.",
        KEY,
        _of_keys(lambda usage: usage.num_cached_tokens),
        is_shared=True,
    ),
    Counter(
        "quire_key_completion_tokens_total",
        "Number of tokens of completions of an API key.",
        KEY,
        _of_keys(lambda usage: usage.num_completion_tokens),
        is_shared=True,
    ),
)
