"""Links between pipeline stages over Gloo."""

import signal

from link_checks import LinkChecks


class TestDistributedLink(LinkChecks):
    kind = "gloo-link"

    def test_a_residual_in_some_messages_is_refused(self, link):
        answer = link.answer(0, link.begin(0, "send", [(3, 2, 0), (3, 1, 1)]))
        assert "must have a residual, or none" in answer.error

    def test_a_sender_that_died_is_noticed_at_once(self, link):
        begun = link.begin(1, "receive", [2])
        link.signal(0, signal.SIGKILL)
        answer = link.answer(1, begun)
        assert "closed by peer" in answer.error or "reset by peer" in answer.error
        assert answer.seconds < 30

    def test_ranks_listen_on_one_address(self, link):
        assert link.values("listeners") == [["0100007F"]] * 2
