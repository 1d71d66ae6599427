import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.engine.scheduling.decode_spread import decode_quota

STAGES = st.integers(2, 9)
DECODES = st.integers(0, 300)
FIRST_IDS = st.integers(0, 1000)


def turn(num_decodes, num_stages, first_id):
    return [decode_quota(num_decodes, num_stages, first_id + step) for step in range(num_stages)]


@given(DECODES, STAGES, FIRST_IDS)
def test_the_quotas_of_a_turn_have_room_for_all_decodes(num_decodes, num_stages, first_id):
    quotas = turn(num_decodes, num_stages, first_id)
    assert sum(quotas) == max(num_decodes, num_stages)


@given(DECODES, STAGES, FIRST_IDS)
def test_the_quotas_of_a_turn_differ_by_at_most_one(num_decodes, num_stages, first_id):
    quotas = turn(num_decodes, num_stages, first_id)
    assert max(quotas) - min(quotas) <= 1
    assert min(quotas) >= 1


@given(DECODES, STAGES, FIRST_IDS)
def test_more_decodes_never_have_a_smaller_quota(num_decodes, num_stages, plan_id):
    more = decode_quota(num_decodes + 1, num_stages, plan_id)
    assert more >= decode_quota(num_decodes, num_stages, plan_id)


@pytest.mark.parametrize(
    ("num_decodes", "quotas"), [(9, [3, 2, 2, 2]), (8, [2, 2, 2, 2]), (2, [1, 1, 1, 1])]
)
def test_the_first_steps_of_a_turn_take_the_rest(num_decodes, quotas):
    assert turn(num_decodes, 4, first_id=0) == quotas
