from quire.engine.kv_cache.prefix_stats import WINDOW_REQUESTS, PrefixStats


def test_the_rate_of_nothing_is_zero():
    assert PrefixStats().hit_rate == 0.0


def test_tokens_are_counted_and_not_requests():
    stats = PrefixStats()
    stats.record(100, 90)
    stats.record(20, 0)
    assert (stats.num_queries, stats.num_hits, stats.hit_rate) == (120, 90, 0.75)


def test_the_rate_forgets_old_requests_and_the_totals_do_not():
    stats = PrefixStats()
    stats.record(100, 100)
    for _ in range(WINDOW_REQUESTS):
        stats.record(10, 0)
    assert stats.hit_rate == 0.0
    assert stats.num_hits == 100


def test_a_request_leaves_the_window_with_its_own_hits():
    stats = PrefixStats()
    stats.record(100, 40)
    for _ in range(WINDOW_REQUESTS):
        stats.record(10, 5)
    assert stats.hit_rate == 0.5
