import gc

import pytest
import torch

from quire.worker.graphs.graph_capture import EagerRuns, causes_of, gc_disabled, step_capture


def test_a_device_without_graphs_runs_again():
    buffer = torch.zeros(2)

    def run():
        buffer.add_(1)
        return buffer

    capturer = step_capture(torch.device("cpu"))
    assert isinstance(capturer, EagerRuns)
    replay = capturer.capture(run)
    capturer.finish()
    assert replay() is buffer
    assert replay().tolist() == [2, 2]


def _fail_without_collection():
    with gc_disabled():
        assert not gc.isenabled()
        raise KeyError


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_collected_inside_and_all_is_as_before_after_an_error(is_enabled):
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(KeyError):
            _fail_without_collection()
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_the_last_cause_is_what_happened_first():
    first, second, last = KeyError("first"), ValueError("second"), OSError("the end")
    second.__context__ = first
    last.__cause__ = second
    assert causes_of(last) == [last, second, first]


def test_an_error_that_is_its_own_cause_is_one():
    error = ValueError("loop")
    error.__cause__ = error
    assert causes_of(error) == [error]
