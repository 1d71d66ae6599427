"""Links between pipeline stages over Gloo."""

import signal

import pytest
from link_checks import LinkChecks, received


class TestDistributedLink(LinkChecks):
    kind = "gloo-link"

    def test_a_residual_in_some_messages_is_refused(self, link):
        answer = link.answer(0, link.begin(0, "send", [(3, 2, 0), (3, 1, 1)]))
        assert "must have a residual, or none" in answer.error

    @pytest.mark.parametrize("wanted", [2, 4])
    def test_another_steps_tensors_are_not_received(self, link, wanted):
        """Gloo would leave rows as they are, or end the process."""
        link.values("set_timeout", 0.4)
        link.answer(0, link.begin(0, "send", [(3, 2, 0)]))
        answer = link.answer(1, link.begin(1, "receive", [wanted]))
        assert answer.code == "collective_failed"
        assert "message 1 of ranks 0, 1" in answer.error

    def test_a_sender_that_died_is_noticed_at_once(self, link):
        begun = link.begin(1, "receive", [2])
        link.signal(0, signal.SIGKILL)
        answer = link.answer(1, begun)
        assert "closed by peer" in answer.error or "reset by peer" in answer.error
        assert answer.seconds < 30

    def test_a_link_that_was_aborted_is_empty_after_a_reset(self, link):
        """The messages that were on their way, and the number of tensors, are forgotten."""
        assert link.answer(0, link.begin(0, "send", [(3, 2, 0), (4, 2, 1)])).error == ""
        assert link.answer(1, link.begin(1, "receive", [3])).error == ""
        assert link.answer(0, link.begin(0, "abort")).error == ""
        answer = link.answer(1, link.begin(1, "receive", [4, 5]))
        assert answer.code == "collective_failed"
        assert answer.seconds < 30
        link.values("reset", 2)
        messages = [(5, 1, 7), (6, 1, 8)]
        assert link.answer(0, link.begin(0, "send", messages)).error == ""
        assert link.answer(1, link.begin(1, "receive", [5, 6])).value == received(messages)

    def test_ranks_listen_on_one_address(self, link):
        assert link.values("listeners") == [["0100007F"]] * 2
