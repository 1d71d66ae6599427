"""Progress and summary of a batch say how far it is, and what is left."""

import asyncio
import io
from contextlib import suppress

import pytest

from quire.cli.batch import batch_progress
from quire.cli.batch.batch_input import CheckedInput
from quire.cli.batch.batch_lines import BatchFault, BatchResult
from quire.cli.batch.batch_output import BatchOutput, Existing
from quire.cli.batch.batch_progress import BatchProgress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def results(tmp_path):
    checked = CheckedInput("d", 9, 9)
    output = BatchOutput.open(str(tmp_path / "out"), "batch_1", checked, Existing.CONTINUE)
    yield output
    output.close()


def append(results, *numbers, error=None):
    for number in numbers:
        result = BatchResult(id=results.id_of(number), custom_id="x", error=error)
        results.append(number, result)


def test_the_summary_has_what_succeeded_and_what_failed(results):
    progress = BatchProgress(results, 9, None)
    append(results, 1, 2, 3)
    append(results, 4, error=BatchFault("c", "wrong"))
    summary = progress.summary()
    assert summary.startswith("4 of 9 requests are done: 3 succeeded, 1 failed; 0 s, ")
    assert "requests/s, 0 tokens/s" in summary


def test_a_line_has_what_is_left_once_that_is_known(results):
    progress = BatchProgress(results, 9, None, lambda: 0)
    assert progress.line() == "0 of 9 requests are done, 0 tokens/s"
    append(results, 1)
    append(results, 2, error=BatchFault("c", "wrong"))
    assert progress.line() == "2 of 9 requests are done, 1 failed, 0 tokens/s, about 0 s left"


def test_a_terminal_has_one_line_that_is_rewritten(results, monkeypatch):
    monkeypatch.setattr(batch_progress, "TERMINAL_PERIOD_S", 0.01)
    terminal = Terminal()
    shown_by(BatchProgress(results, 9, terminal))
    first, *others = terminal.getvalue().split(batch_progress.ERASE)
    assert first == ""
    assert len(others) > 2
    assert all("\n" not in line for line in others[:-1])
    assert others[-1] == "quire: 0 of 9 requests are done: 0 succeeded, 0 failed, more\n"


def test_a_file_gets_a_line_now_and_then(results, monkeypatch):
    monkeypatch.setattr(batch_progress, "LOG_PERIOD_S", 0.01)
    log = io.StringIO()
    shown_by(BatchProgress(results, 9, log))
    assert len(log.getvalue().splitlines()) > 2
    assert batch_progress.ERASE not in log.getvalue()


def shown_by(progress):
    async def show():
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await progress.show()

    asyncio.run(show())
    progress.end(", more")


def test_without_a_stream_nothing_is_shown(results):
    progress = BatchProgress(results, 9, None)
    asyncio.run(progress.show())
    progress.end()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.4, "0 s"), (99.0, "99 s"), (120.0, "2 min"), (9000.0, "2.5 h")]
)
def test_a_duration_is_in_the_unit_that_a_person_would_choose(seconds, shown):
    assert batch_progress._duration(seconds) == shown
