"""A reason is new once, for all threads together."""

from concurrent.futures import ThreadPoolExecutor

from quire.native.logged_reasons import LoggedReasons


def test_a_reason_is_new_once():
    logged = LoggedReasons()
    assert [logged.is_new(reason) for reason in ("a", "b", "a", "b")] == [True, True, False, False]


def test_one_of_many_threads_finds_a_reason_new():
    logged = LoggedReasons()
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(lambda _: logged.is_new("a"), range(100))) == 1
