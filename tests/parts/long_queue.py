"""A backlog whose estimate is known: a long queue, at a rate that was measured."""

from engine_parts import make_message

from quire.frontend.dispatch.backlog import Backlog, QueueLimits
from quire.messages import EngineOutput, EngineOutputs, EngineStats


def long_queue(max_wait_s: float | None = None) -> Backlog:
    """Return the backlog of an engine that runs one request, at a token a second, and 20 wait.

    A completion takes about 40 s, as the time of a prompt counts as that of its tokens.
    """
    now_s = 0.0
    backlog = Backlog(QueueLimits(1, 100, max_wait_s), clock=lambda: now_s)
    backlog.add(make_message(f"q{i}", prompt=[1] * 10, max_tokens=50) for i in range(22))
    for i in range(51):
        now_s += 1.0
        name, reason = ("q0", None) if i < 50 else ("q1", None)
        output = EngineOutput(
            request_id=name, token_ids=[7], finish_reason="stop" if i == 49 else reason
        )
        backlog.take(EngineOutputs([output], EngineStats(num_running=1, num_waiting=20)), 1)
    return backlog
