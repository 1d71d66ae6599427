"""Totals grow with every step, and a reader sees whole steps."""

from quire.frontend.dispatch.throughput import Done, Throughput
from quire.messages import EngineOutput, EngineOutputs, EngineStats


def step(num_computed, *completions):
    outputs = [EngineOutput(request_id=str(i), token_ids=ids) for i, ids in enumerate(completions)]
    return EngineOutputs(outputs, EngineStats(num_scheduled_tokens=num_computed))


def test_steps_add_up():
    throughput = Throughput()
    assert throughput.done == Done(0, 0, 0)
    throughput.add(step(10))
    first = throughput.done
    throughput.add(step(3, [1], [2, 3], []))
    assert throughput.done == Done(2, 13, 3)
    assert first == Done(1, 10, 0)


def test_tokens_are_counted_and_not_outputs():
    throughput = Throughput()
    throughput.add(step(7, [1, 2, 3], []))
    assert throughput.done == Done(1, 7, 3)
    throughput.add(step(0))
    assert throughput.done == Done(2, 7, 3)
