"""A stage knows its place, and has a link to each stage beside it."""

import pytest

from quire.testing.model.threaded_ranks import ThreadedLink
from quire.worker.stage import WHOLE_MODEL, Stage

LAYERS = range(2)


def test_a_whole_model_is_the_first_and_the_last_stage():
    assert WHOLE_MODEL.is_first
    assert WHOLE_MODEL.is_last
    assert WHOLE_MODEL.layers is None


def test_stages_know_their_place():
    before, after = ThreadedLink(), ThreadedLink()
    first = Stage(index=0, count=3, layers=LAYERS, next=after)
    middle = Stage(index=1, count=3, layers=LAYERS, previous=before, next=after)
    last = Stage(index=2, count=3, layers=LAYERS, previous=before)
    places = [(stage.is_first, stage.is_last) for stage in (first, middle, last)]
    assert places == [(True, False), (False, False), (False, True)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"index": 2, "count": 2}, "no pipeline stage 2 among 2"),
        ({"index": -1, "count": 2}, "no pipeline stage -1 among 2"),
        ({"index": 0, "count": 2, "layers": LAYERS}, "needs a link to each stage beside it"),
        ({"index": 1, "count": 2, "layers": LAYERS}, "needs a link to each stage beside it"),
        ({"index": 0, "count": 2, "next": ThreadedLink()}, "pipeline stage 0 of 2 has no layers"),
        (
            {"index": 1, "count": 3, "layers": LAYERS, "previous": ThreadedLink()},
            "pipeline stage 1 of 3 needs a link",
        ),
        ({"previous": ThreadedLink()}, "pipeline stage 0 of 1 needs a link"),
    ],
)
def test_a_stage_without_its_place_is_a_mistake(wrong, message):
    with pytest.raises(ValueError, match=message):
        Stage(**wrong)
