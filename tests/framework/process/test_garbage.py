"""Objects of the start-up are not looked at again."""

import gc
import weakref

import pytest

from quire.process import garbage


@pytest.fixture
def restored():
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_what_exists_is_left_out_of_collections(restored):
    kept = [[] for _ in range(100)]
    others = gc.get_threshold()[1:]
    garbage.settle()
    assert gc.get_freeze_count() > len(kept)
    assert gc.get_threshold() == (garbage.YOUNGEST, *others)
    assert not any(found is kept[0] for found in gc.get_objects())


def test_collections_pause_until_the_code_is_imported(restored):
    garbage.pause_collections()
    assert not gc.isenabled()
    code = [[] for _ in range(100)]
    garbage.leave_out_code()
    assert gc.isenabled()
    assert not any(found is code[0] for found in gc.get_objects())


@pytest.mark.parametrize("is_left_out", [True, False])
def test_collections_go_on_after_a_start_that_failed(restored, is_left_out):
    with garbage.paused_collections():
        assert not gc.isenabled()
        if is_left_out:
            garbage.settle()
            assert gc.isenabled()
    assert gc.isenabled()


def test_the_garbage_of_the_start_is_collected_and_the_engine_is_left_out(restored):
    class Part:
        pass

    engine, lost = Part(), Part()
    lost.itself, is_there = lost, weakref.ref(lost)
    del lost
    garbage.leave_out_engine()
    assert is_there() is None
    assert not any(found is engine for found in gc.get_objects())
