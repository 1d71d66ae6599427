"""A front end as the engine sees it: what it is told, and when."""

import pytest

from quire.errors import EngineDeadError
from quire.launch.engine_process.engine_wire import Connected, FromEngine, Stepped
from quire.launch.engine_process.front_end import PARENT, REPORT_INTERVAL_S, FrontEnd
from quire.messages import EngineOutputs, EngineStats, StepStats
from quire.process.local.channel import Channel

NOTHING = EngineOutputs([], EngineStats())
STEPS = [StepStats(1, 2, 0.5)]


@pytest.fixture
def ends(tmp_path):
    """A front end, and its own end of the channel."""
    address = f"unix://{tmp_path}/a"
    front_end = FrontEnd.listening(1, address)
    own = Channel(FromEngine, address, is_listening=False)
    yield front_end, own
    own.close()
    front_end.channel.close()


def connect(front_end, own):
    own.send(Connected())
    assert front_end.channel.take(5.0) == Connected()


def test_one_that_has_not_connected_is_told_nothing(ends):
    front_end, own = ends
    assert not front_end.is_due(100.0)
    connect(front_end, own)
    assert front_end.is_due(100.0)


def test_it_is_told_at_intervals_and_only_of_news(ends):
    front_end, own = ends
    connect(front_end, own)
    front_end.tell(NOTHING, 100.0)
    assert own.take(5.0) == Stepped(NOTHING, 0)
    assert not front_end.is_due(200.0)
    front_end.note_step(STEPS)
    assert not front_end.is_due(100.0 + REPORT_INTERVAL_S / 2)
    assert front_end.is_due(100.1 + REPORT_INTERVAL_S)
    assert front_end.steps == []


def test_the_parent_is_told_of_each_step(tmp_path):
    front_end = FrontEnd.listening(PARENT, f"unix://{tmp_path}/a")
    front_end.note_step(STEPS)
    front_end.note_step(STEPS)
    assert front_end.steps == STEPS * 2
    front_end.channel.close()


def test_one_that_does_not_read_is_told_nothing_more(ends):
    front_end, own = ends
    connect(front_end, own)
    num_told = 1
    while front_end.is_due(float(num_told)):
        front_end.tell(NOTHING, float(num_told))
        front_end.note_step(STEPS)
        num_told += 1
    assert 1 < num_told < 100_000
    while own.take() is not None:
        front_end.channel.drain(0.01)
    assert front_end.is_due(float(num_told))


def test_one_that_has_left_is_an_error(ends):
    front_end, own = ends
    connect(front_end, own)
    assert front_end.take() is None
    own.close()
    with pytest.raises(EngineDeadError, match="disconnected"):
        front_end.take()
