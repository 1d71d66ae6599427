"""Links between pipeline stages through shared memory."""

import signal

import pytest
from cpp_compilers import NEEDS_COMPILER
from link_checks import KEYS, MAX_TOKENS, NUM_MESSAGES, LinkChecks, received

pytestmark = NEEDS_COMPILER


class TestSharedMemoryLink(LinkChecks):
    kind = "shared-link"

    def test_a_residual_may_be_left_out_of_some_messages(self, link):
        messages = [(3, 2, 0), (3, 1, 1), (4, 2, 2)]
        link.answer(0, link.begin(0, "send", messages))
        assert link.answer(1, link.begin(1, "receive", [3, 3, 4])).value == received(messages)

    @pytest.mark.parametrize("wanted", [2, 4])
    def test_another_steps_tensors_end_the_link_for_both(self, link, wanted):
        link.answer(0, link.begin(0, "send", [(3, 2, 0)]))
        answer = link.answer(1, link.begin(1, "receive", [wanted]))
        expected = f"message 1 from rank 0 has 3 tokens, and the step of rank 1 has {wanted}"
        assert expected in answer.error
        answer = link.answer(0, link.begin(0, "send", [(3, 2, 0)]))
        assert "was aborted by rank 1" in answer.error

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
    def test_a_sender_that_died_or_stands_still_is_named(self, link, number):
        link.values("set_timeout", 0.4)
        link.signal(0, number)
        answer = link.answer(1, link.begin(1, "receive", [4]))
        assert (answer.ranks, answer.count) == ([0], 1)

    def test_a_receiver_that_is_behind_is_named(self, link):
        link.values("set_timeout", 0.4)
        answer = link.answer(0, link.begin(0, "send", [(2, 2, 0)] * 9))
        assert (answer.ranks, answer.count) == ([1], NUM_MESSAGES + 1)

    def test_an_abort_wakes_the_receiver(self, link):
        begun = link.begin(1, "receive", [4])
        link.wait_in_call(1, begun)
        link.answer(0, link.begin(0, "abort"))
        answer = link.answer(1, begun)
        assert "was aborted by rank 0; rank 0 has not come to it" in answer.error
        assert answer.seconds < 30

    def test_a_link_that_is_reset_is_empty(self, link):
        link.answer(0, link.begin(0, "send", [(1, 2, 0), (2, 2, 1)]))
        link.answer(1, link.begin(1, "receive", [1]))
        link.values("abort")
        link.values("reset", 2)
        messages = [(number + 1, 2, number + 5) for number in range(NUM_MESSAGES)]
        link.answer(0, link.begin(0, "send", messages))
        lengths = [message[0] for message in messages]
        assert link.answer(1, link.begin(1, "receive", lengths)).value == received(messages)

    def test_sides_with_different_sizes_do_not_join(self, link):
        key = next(KEYS)
        link.answer(0, link.begin(0, "join", self.kind, key, 0, 2, MAX_TOKENS, 2))
        answer = link.answer(1, link.begin(1, "join", self.kind, key, 1, 2, MAX_TOKENS, 3))
        assert "rank 0 sends messages of another size than rank 1 expects" in answer.error

    def test_memory_is_unmapped_when_a_link_is_closed(self, link):
        link.answer(0, link.begin(0, "send", [(1, 2, 0)]))
        assert link.values("mappings") == [1, 1]
        link.values("close")
        assert link.values("mappings") == [0, 0]
