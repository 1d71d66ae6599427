"""Whether the load generator itself kept up: its CPU time and how late its event loop was."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from quire.cli.bench.serving.outcome import Outcome
from quire.cli.bench.serving.percentiles import percentile

PERIOD_S = 0.01
MAX_CPU_SHARE = 0.8  # of one core: the event loop has one thread
MIN_LAG_MS = 2.0  # lag below this is never complained of
LAG_SHARES = {"ttft": 0.1, "itl": 0.25}  # of the medians
MS = 1e3


class ClientHealth:
    """Measures this process while a load runs."""

    def __init__(self) -> None:
        self._lags_s: list[float] = []
        self._cpu_s = self._wall_s = 0.0

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[None]:
        """Measure while the context is open; without garbage collection, which stops the loop."""
        watcher = asyncio.create_task(self._measure_lag())
        was_enabled = gc.isenabled()
        gc.collect()
        gc.disable()
        cpu_s, started = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._cpu_s = time.process_time() - cpu_s
            self._wall_s = time.perf_counter() - started
            watcher.cancel()
            if was_enabled:
                gc.enable()

    def figures(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Return the share of a core, the lag of the event loop, and how late requests were."""
        lags = sorted(self._lags_s) or [0.0]
        late = sorted(outcome.sent_s - outcome.planned_s for outcome in outcomes) or [0.0]
        return {
            "cpu_share": self._cpu_s / self._wall_s if self._wall_s else 0.0,
            "loop_lag_p99_ms": percentile(lags, 99) * MS,
            "loop_lag_max_ms": lags[-1] * MS,
            "sent_late_p99_ms": percentile(late, 99) * MS,
        }

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + PERIOD_S
            await asyncio.sleep(PERIOD_S)
            self._lags_s.append(max(0.0, loop.time() - wanted))


def complaints(client: Mapping[str, float], figures: Mapping[str, Any]) -> list[str]:
    """Return why the figures of a load are not to be trusted; nothing if they are."""
    found = []
    if client["cpu_share"] > MAX_CPU_SHARE:
        found.append(
            f"the client used {client['cpu_share']:.0%} of a core, so it may be what is measured; "
            "split the load over several clients"
        )
    limits = [
        share * figures[f"{metric}_ms"]["p50"]
        for metric, share in LAG_SHARES.items()
        if figures[f"{metric}_ms"]
    ]
    limit = max(MIN_LAG_MS, min(limits, default=MIN_LAG_MS))
    if client["loop_lag_p99_ms"] > limit:
        found.append(
            f"the client's event loop was up to {client['loop_lag_p99_ms']:.1f} ms late (p99; "
            f"{limit:.1f} would do), and times to first token and between tokens include that; run "
            "the client on cores of its own"
        )
    return found
