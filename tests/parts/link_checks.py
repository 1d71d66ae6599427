"""What every link between two pipeline stages must do; a test class names its kind."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rank_process import RankProcesses, stage_tensors

KEYS = (f"link-{number}" for number in count())
MAX_TOKENS, NUM_MESSAGES = 12, 3
Message = tuple[int, int, int]  # tokens, tensors, seed


def received(messages: list[Message]) -> list[list[bytes]]:
    """What the receiver of messages has."""
    return [
        [bytes(part.contiguous().view(torch.uint8).numpy()) for part in stage_tensors(*message)]
        for message in messages
    ]


class LinkChecks:
    """Checks of a link between two processes."""

    kind: ClassVar[str]

    @pytest.fixture(scope="class")
    @classmethod
    def processes(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankProcesses]:
        folder: Path = tmp_path_factory.mktemp("link")
        with RankProcesses(2, folder) as ranks:
            yield ranks

    @pytest.fixture
    def link(self, processes: RankProcesses) -> Iterator[RankProcesses]:
        processes.join(self.kind, next(KEYS), MAX_TOKENS, NUM_MESSAGES)
        yield processes
        processes.revive()

    def test_as_many_messages_as_the_ring_has_are_sent_without_waiting(self, link):
        messages = [(number + 1, 2, number) for number in range(NUM_MESSAGES)]
        answer = link.answer(0, link.begin(0, "send", messages))
        assert answer.error == ""
        lengths = [message[0] for message in messages]
        assert link.answer(1, link.begin(1, "receive", lengths)).value == received(messages)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        num_parts=st.integers(1, 2),
        lengths=st.lists(st.integers(1, MAX_TOKENS), min_size=1, max_size=25),
        seed=st.integers(0, 2**31),
    )
    def test_messages_arrive_in_order_bit_by_bit(self, processes, num_parts, lengths, seed):
        processes.join(self.kind, next(KEYS), MAX_TOKENS, NUM_MESSAGES)
        messages = [(length, num_parts, seed + i) for i, length in enumerate(lengths)]
        sent = processes.begin(0, "send", messages)
        answer = processes.answer(1, processes.begin(1, "receive", lengths))
        assert answer.value == received(messages)
        assert processes.answer(0, sent).error == ""

    def test_tensors_that_are_too_large_are_not_sent(self, link):
        answer = link.answer(0, link.begin(0, "send", [(MAX_TOKENS + 1, 2, 0)]))
        assert f"up to {MAX_TOKENS} tokens of 6 torch.bfloat16, not [13, 6]" in answer.error

    def test_a_sender_does_not_wait_longer_than_its_limit(self, link):
        link.values("set_timeout", 0.4)
        answer = link.answer(0, link.begin(0, "send", [(2, 2, 0)] * (NUM_MESSAGES + 1)))
        assert answer.code == "collective_failed"
        assert f"message {NUM_MESSAGES + 1} of ranks 0, 1" in answer.error
        assert answer.count == NUM_MESSAGES + 1

    def test_a_receiver_does_not_wait_longer_than_its_limit(self, link):
        link.answer(0, link.begin(0, "send", [(2, 2, 0)]))
        link.values("set_timeout", 0.4)
        answer = link.answer(1, link.begin(1, "receive", [2, 2]))
        assert (answer.code, answer.count) == ("collective_failed", 2)
        assert "message 2 of ranks 0, 1" in answer.error

    def test_a_receiver_does_not_wait_for_a_sender_that_left(self, link):
        begun = link.begin(1, "receive", [2])
        assert link.answer(0, link.begin(0, "close")).error == ""
        answer = link.answer(1, begun)
        assert answer.code == "collective_failed"
        assert answer.seconds < 30

    def test_a_closed_link_is_not_used_again(self, link):
        for _ in range(2):
            link.values("close")
        sent, got = link.begin(0, "send", [(2, 2, 0)]), link.begin(1, "receive", [2])
        assert "is closed" in link.answer(0, sent).error
        assert "is closed" in link.answer(1, got).error
