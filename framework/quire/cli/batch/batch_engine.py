"""A batch on an engine of its own: the server's routes in this process, without a port.

The first SIGTERM, SIGINT or SIGHUP lets the running requests finish, for `shutdown_timeout_s`
seconds at most; a second one aborts them. Requests that were aborted have no result.
"""

import asyncio
import logging
import signal
from contextlib import suppress
from functools import partial
from typing import TextIO

from quire.cli.batch.batch_input import BatchInput, CheckedInput
from quire.cli.batch.batch_output import BatchOutput
from quire.cli.batch.batch_progress import BatchProgress
from quire.cli.batch.batch_run import BatchRun
from quire.cli.progress_line import ProgressLine
from quire.config import Settings
from quire.launch.engine import Engine, start_engine
from quire.plugins.report import plugins_report
from quire.process.garbage import settle
from quire.server.app import QUEUED_BODIES, create_unguarded_app
from quire.server.http.lifecycle import Lifecycle, wait_to_drain
from quire.server.routes.ollama.operations import OLLAMA_BODIES
from quire.server.stats_log import log_stats
from quire.server.stop_signals import signals_handled

STOP_TIMEOUT_S = 1.0  # for the last step, when all requests are over
# Routes of Ollama's API stream unless told otherwise, and their errors have no code.
URLS = tuple(path for path in QUEUED_BODIES if path not in OLLAMA_BODIES)
BY_SEQS = 2  # requests in flight by those that the engine runs, so that it never waits for one

logger = logging.getLogger(__name__)


def compute_batch(
    settings: Settings,
    requests: BatchInput,
    checked: CheckedInput,
    results: BatchOutput,
    max_concurrency: int | None,
    stream: TextIO | None,
) -> signal.Signals | None:
    """Start an engine, and compute the requests that have no result yet.

    Args:
        settings: Settings of the engine.
        requests: File of requests.
        checked: What is known of it.
        results: File of results.
        max_concurrency: Number of requests that run at a time; None: enough to fill the engine.
        stream: Where to show the progress; None: nowhere.

    Returns:
        The signal that ended it early, if one did.

    Raises:
        QuireError: The engine cannot be started, or it died.
        OSError: The results cannot be written.
    """
    with ProgressLine(f"loading {settings.model.model}"):
        engine = start_engine(settings, is_serving=True)
    settle()
    return asyncio.run(_compute(engine, requests, checked, results, max_concurrency, stream))


async def _compute(
    engine: Engine,
    requests: BatchInput,
    checked: CheckedInput,
    results: BatchOutput,
    max_concurrency: int | None,
    stream: TextIO | None,
) -> signal.Signals | None:
    frontend = engine.async_frontend()
    server = engine.settings.server
    app = create_unguarded_app(
        frontend,
        partial(plugins_report, engine.plugins),
        Lifecycle(),
        has_lenient_fields=server.lenient_fields,
    )
    run = BatchRun(
        app,
        URLS,
        requests,
        results,
        max_concurrency=max_concurrency or concurrency_of(engine.settings),
        max_body_bytes=server.max_body_bytes,
        check_alive=frontend.thread.check_alive,
    )
    progress = BatchProgress(
        results,
        checked.num_requests,
        stream,
        lambda: frontend.dispatch.done.num_generated_tokens,
    )
    beside = [progress.show(), log_stats(frontend, hooks=engine.plugins.hooks("stats_logged"))]
    tasks = [asyncio.create_task(each) for each in beside]
    ended_by = None
    try:
        ended_by = await _run_until_signal(run, server.shutdown_timeout_s)
        if ended_by is None:
            requests.check_unchanged(checked)
    finally:
        for task in tasks:
            task.cancel()
        progress.end(_note(results) if results.num_done < checked.num_requests else "")
        await frontend.shutdown(0.0, STOP_TIMEOUT_S)
    return None if results.num_done == checked.num_requests else ended_by


def concurrency_of(settings: Settings) -> int:
    """Return the number of requests in flight that keep an engine busy."""
    num_running = settings.scheduler.max_num_seqs * settings.parallel.data_parallel_size
    return min(BY_SEQS * num_running, num_running + settings.scheduler.max_num_queued)


async def _run_until_signal(run: BatchRun, timeout_s: float) -> signal.Signals | None:
    """Run to the end, or until a signal; return the signal."""
    signalled, aborted = asyncio.Event(), asyncio.Event()
    found: list[signal.Signals] = []

    def on_signal(signum: signal.Signals) -> None:
        (aborted if found else signalled).set()
        found.append(signum)
        run.stop()

    with signals_handled(on_signal):
        running = asyncio.create_task(run.run())
        waiting = asyncio.create_task(signalled.wait())
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not running.done():
            logger.warning(
                "stopping: the running requests may finish within %g s; a second signal aborts "
                "them",
                timeout_s,
            )
            await wait_to_drain(_ended(running), aborted, timeout_s)
            running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return found[0] if found else None


async def _ended(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])


def _note(results: BatchOutput) -> str:
    return f"; {results.how_to_go_on}" if results.how_to_go_on else ""
