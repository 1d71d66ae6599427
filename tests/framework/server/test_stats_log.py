"""The server logs its load while it has work, and nothing otherwise."""

import asyncio
import logging
import re
from pathlib import Path

from installed import write_distribution

from quire.config import PluginSettings
from quire.frontend.dispatch.dispatcher import Done
from quire.frontend.metrics.request_observer import RequestObserver
from quire.messages import EngineStats, ReplicaStats
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams
from quire.server.stats_log import Intervals, line_of, log_stats

PAGE = Path(__file__).parents[3] / "docs" / "hooks.md"
STATS = EngineStats(
    num_running=3,
    num_waiting=2,
    num_blocks=200,
    num_used_blocks=50,
    num_preemptions=4,
    prefix_hit_rate=0.754,
)


class Line:
    """The lines of the log, without the log."""

    def __init__(self, now_s):
        self.intervals = Intervals(now_s)

    def next(self, *reading):
        interval = self.intervals.next(*reading)
        return None if interval is None else line_of(interval)


def test_a_line_has_the_rates_since_the_last_one():
    line = Line(100.0)
    assert line.next(STATS, Done(5, 1000, 50), 110.0) == (
        "computed: 100.0 tokens/s, generated: 5.0 tokens/s, running: 3 reqs, waiting: 2 reqs, "
        "KV cache usage: 25.0%, prefix cache hit rate: 75.4%, preemptions: 4"
    )
    second = line.next(STATS, Done(9, 1100, 150), 115.0)
    assert second.startswith("computed: 20.0 tokens/s, generated: 20.0 tokens/s")
    assert second.endswith("preemptions: 0")


def test_nothing_is_said_of_nothing():
    line = Line(0.0)
    idle = EngineStats(num_blocks=200)
    assert line.next(idle, Done(), 10.0) is None
    assert line.next(idle, Done(1, 8, 1), 20.0) is not None  # work that has ended by now
    assert line.next(idle, Done(1, 8, 1), 30.0) is None


def test_work_without_progress_is_logged():
    line = Line(0.0)
    assert "generated: 0.0 tokens/s, running: 3 reqs" in line.next(STATS, Done(), 10.0)


def test_a_model_without_a_cache_uses_none_of_it():
    assert "usage: 0.0%" in Line(0.0).next(EngineStats(num_running=1), Done(), 1.0)


def test_two_looks_at_one_moment_are_one():
    line = Line(10.0)
    assert line.next(STATS, Done(1, 8, 1), 10.0) is None


def test_either_running_or_waiting_requests_are_logged():
    for stats in (EngineStats(num_running=1), EngineStats(num_waiting=1)):
        assert Line(0.0).next(stats, Done(), 10.0) is not None


def test_a_full_cache_is_used_in_whole():
    stats = EngineStats(num_running=1, num_blocks=200, num_used_blocks=200)
    assert "usage: 100.0%" in Line(0.0).next(stats, Done(), 1.0)


def test_preemptions_are_logged_once_also_after_a_silence():
    line = Line(0.0)
    stats = EngineStats(num_preemptions=3)
    assert line.next(stats, Done(), 10.0) is None
    assert line.next(stats, Done(1, 8, 1), 20.0).endswith("preemptions: 0")
    assert "computed: 0.8 tokens/s" in line.next(
        EngineStats(num_preemptions=5, num_running=1), Done(2, 16, 2), 30.0
    )


def test_of_several_replicas_the_load_of_each_is_logged():
    replicas = [ReplicaStats(True, 3, 2), ReplicaStats(False), ReplicaStats(True, 1, 0, True)]
    line = Line(0.0).next(EngineStats(num_running=3, replicas=replicas), Done(1, 8, 1), 10.0)
    assert line.endswith("preemptions: 0, running+waiting by replica: 3+2 down 1+0 (silent)")


def test_a_busy_server_writes_lines_and_an_idle_one_none(served, caplog):
    async def generate():
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        await served.frontend.generate_whole("one two", params)

    async def main(work):
        lines = asyncio.create_task(log_stats(served.frontend, 0.02))
        await work()
        await asyncio.sleep(0.1)
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)

    with caplog.at_level(logging.INFO, "quire.server.stats_log"):
        asyncio.run(main(generate))
        said = [record.getMessage() for record in caplog.records]
        caplog.clear()
        asyncio.run(main(lambda: asyncio.sleep(0)))
    assert said
    assert all("generated: " in line for line in said)
    assert len(caplog.records) <= 1  # the new log's first look, at what was done before it


def test_the_plugin_of_the_page_gets_the_load_and_the_usage(served, tmp_path, monkeypatch, capsys):
    [code] = re.findall(r"```python\n# acme_stats\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    write_distribution(tmp_path, "acme-stats", {"acme_stats": "acme_stats"}, acme_stats=code)
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins = load_plugins(PluginSettings())
    observer = RequestObserver("demo", plugins.hooks("request_completed"))
    monkeypatch.setattr(served.frontend, "observer", observer)

    async def main():
        hooks = plugins.hooks("stats_logged")
        lines = asyncio.create_task(log_stats(served.frontend, 0.02, hooks))
        params = SamplingParams(max_tokens=5, ignore_eos=True)
        await served.frontend.generate_whole("one two", params)
        await asyncio.sleep(0.1)
        lines.cancel()
        await asyncio.gather(lines, return_exceptions=True)

    asyncio.run(main())
    printed = capsys.readouterr().out
    assert re.search(r"^[1-9]\d* steps of [\d.]+ ms, .* running: \d+, waiting: 0", printed, re.M)
    assert re.search(r"^unknown: \d+ \+ 5 tokens, length after \d", printed, re.M)
