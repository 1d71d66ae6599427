import pytest
from engine_parts import InOrder, make_request

from quire.engine.scheduling.waiting_queue import WaitingQueue, insert_into, remove_from


class ByLength(InOrder):
    """The shortest prompt first."""

    def order(self, request):
        return request.num_prompt_tokens


def queued(policy, *lengths):
    queue = WaitingQueue(policy)
    requests = [make_request(f"r{i}", prompt=range(n)) for i, n in enumerate(lengths)]
    for request in requests:
        queue.assign_key(request)
        queue.push(request)
    return queue, requests


def test_equals_go_in_the_order_of_their_arrival():
    queue, requests = queued(InOrder(), 3, 1, 2)
    assert list(queue) == requests


def test_the_policys_key_goes_before_the_arrival():
    queue, (long, short, other) = queued(ByLength(), 5, 1, 5)
    assert [*queue] == [short, long, other]
    assert queue[0] is short
    assert len(queue) == 3


def test_a_requeued_request_has_its_old_position():
    queue, (first, second, third) = queued(InOrder(), 1, 1, 1)
    queue.remove(second)
    queue.remove(first)
    queue.push(second)
    queue.push(first)
    assert list(queue) == [first, second, third]


def test_a_request_that_is_not_queued_cannot_be_removed():
    queue, (first, second) = queued(InOrder(), 1, 1)
    queue.remove(first)
    with pytest.raises(ValueError, match="r0 is not in the list"):
        queue.remove(first)
    running = []
    insert_into(running, second)
    with pytest.raises(ValueError, match="r0 is not in the list"):
        remove_from(running, first)
