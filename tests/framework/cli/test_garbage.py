"""Objects of the start-up are not looked at again."""

import gc

import pytest

from quire.cli import garbage


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
