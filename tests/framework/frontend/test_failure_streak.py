"""A streak of failures against a model of it: a list of the failures since the last success."""

from hypothesis import given
from hypothesis import strategies as st

from quire.frontend.failure_streak import (
    MAX_FAILURES,
    MIN_FAILING_S,
    RETRY_AFTER_S,
    FailureStreak,
)

EVENTS = st.lists(
    st.tuples(st.sampled_from(["success", "failure"]), st.floats(0, 40, width=16)), max_size=40
)


@given(EVENTS)
def test_a_streak_is_failing_if_enough_failures_lasted_for_long_enough_and_are_recent(events):
    now_s, failures, has_lasted = [0.0], [], False
    streak = FailureStreak(lambda: now_s[0])
    for kind, wait_s in events:
        now_s[0] += wait_s
        assert streak.is_failing == (has_lasted and now_s[0] - failures[-1] < RETRY_AFTER_S)
        if kind == "success":
            assert streak.record_success() == (len(failures) if has_lasted else 0)
            failures, has_lasted = [], False
        else:
            failures.append(now_s[0])
            had_lasted = has_lasted
            has_lasted = has_lasted or (
                len(failures) >= MAX_FAILURES and failures[-1] - failures[0] >= MIN_FAILING_S
            )
            assert streak.record_failure() == (has_lasted and not had_lasted)
        assert streak.num_failures == len(failures)
        assert streak.is_failing == has_lasted
