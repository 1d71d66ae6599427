"""Load of a simulated cluster: conversations with shared system prompts, bursts, lone prompts.

A conversation starts with one of some system prompts, a few of which are common. Each of its next
messages is sent some time after the completion before has ended. In a burst, conversations of one
system prompt arrive several times as often as all others. Some prompts are unrelated to any.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from quire.cli.bench.null_engine import SAMPLED_TOKEN
from quire.messages import EngineRequest
from quire.sampling_params import SamplingParams

FIRST_OWN_TOKEN = 1_000_000  # smaller ones are of system prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLoad:
    """Sizes of a load; lengths in tokens, means of geometric distributions where not said.

    Attributes:
        num_requests: Number of requests in all.
        rate: Requests per second of the whole cluster, outside bursts.
        num_system_prompts: Number of system prompts; the k-th is used as often as 1/k.
        system_len: Length of each.
        message_len: Mean length of a message.
        completion_len: Mean length of a completion.
        num_turns: Mean number of messages of a conversation.
        think_s: Mean seconds between a completion and the next message.
        lone_share: Fraction of the conversations that are one unrelated prompt.
        lone_len: Mean length of such a prompt.
        burst_every_s: Seconds from one burst to the next.
        burst_s: Duration of a burst.
        burst_rate: Rate of new conversations in a burst, relative to the rate outside.
    """

    num_requests: int
    rate: float
    num_system_prompts: int = 64
    system_len: int = 256
    message_len: int = 64
    completion_len: int = 32
    num_turns: int = 4
    think_s: float = 5.0
    lone_share: float = 0.3
    lone_len: int = 256
    burst_every_s: float = 20.0
    burst_s: float = 2.0
    burst_rate: float = 3.0

    @property
    def requests_each(self) -> float:
        """Mean number of requests of a conversation."""
        return self.lone_share + (1 - self.lone_share) * self.num_turns


@dataclass(slots=True)
class Conversation:
    """A conversation: its tokens so far, and the number of messages to come."""

    number: int
    token_ids: list[int]
    turns_left: int
    num_sent: int = 0


class LoadGenerator:
    """Makes the requests of a load; those of equal seeds are equal.

    Args:
        load: Sizes of the load.
        seed: Seed of all random numbers.
    """

    def __init__(self, load: ClusterLoad, seed: int) -> None:
        self._load = load
        self._arrivals = random.Random(f"arrivals {seed}")
        self._seed = seed
        self._weights = [1 / (k + 1) for k in range(load.num_system_prompts)]
        self._num_requests = 0

    def conversations(self) -> Iterator[tuple[float, Conversation]]:
        """Yield conversations with the time of their first message, without end."""
        load, now_s, number = self._load, 0.0, 0
        rate = load.rate / load.requests_each
        while True:
            is_burst = now_s % load.burst_every_s > load.burst_every_s - load.burst_s
            now_s += self._arrivals.expovariate(rate * (load.burst_rate if is_burst else 1))
            yield now_s, self._begin(number, int(now_s // load.burst_every_s) if is_burst else None)
            number += 1

    def next_request(self, conversation: Conversation) -> EngineRequest | None:
        """Return the next request of a conversation; None once all of the load's were made."""
        if self._num_requests >= self._load.num_requests:
            return None
        self._num_requests += 1
        rng = self._rng(conversation)
        conversation.turns_left -= 1
        conversation.num_sent += 1
        max_tokens = _length(rng, self._load.completion_len)
        return EngineRequest(
            request_id=f"{conversation.number}.{conversation.num_sent}",
            token_ids=list(conversation.token_ids),
            params=SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True),
            max_tokens=max_tokens,
            seed=0,
        )

    def answer(self, conversation: Conversation, request: EngineRequest) -> float:
        """Append a completion and the next message; return the seconds until it is sent."""
        rng = self._rng(conversation)
        conversation.token_ids += [SAMPLED_TOKEN] * request.max_tokens
        conversation.token_ids += _own_tokens(rng, _length(rng, self._load.message_len))
        return rng.expovariate(1 / self._load.think_s)

    def _begin(self, number: int, burst: int | None) -> Conversation:
        load, rng = self._load, random.Random(f"{self._seed} {number}")
        if rng.random() < load.lone_share:
            return Conversation(number, _own_tokens(rng, _length(rng, load.lone_len)), 1)
        which = rng.choices(range(load.num_system_prompts), self._weights)[0]
        if burst is not None:
            which = burst % load.num_system_prompts
        first = which * load.system_len
        system = list(range(first, first + load.system_len))
        message = _own_tokens(rng, _length(rng, load.message_len))
        return Conversation(number, system + message, _length(rng, load.num_turns))

    def _rng(self, conversation: Conversation) -> random.Random:
        """Return random numbers that depend on the conversation's message alone, not on time."""
        return random.Random(f"{self._seed} {conversation.number} {conversation.num_sent}")


def _length(rng: random.Random, mean: int) -> int:
    """Return a length of at least 1, geometrically distributed and at most four times the mean."""
    return 1 + min(int(rng.expovariate(1 / mean)), 4 * mean)


def _own_tokens(rng: random.Random, count: int) -> list[int]:
    """Return tokens that no other message has."""
    first = rng.randrange(FIRST_OWN_TOKEN, 2**31 - count)
    return list(range(first, first + count))
