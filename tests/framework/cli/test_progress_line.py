"""The line of a start that takes long."""

import io
import logging
import time

import pytest

from quire.cli.progress_line import ERASE, ProgressLine


class Screen(io.StringIO):
    def isatty(self):
        return True

    @property
    def last_line(self):
        return self.getvalue().rpartition(ERASE)[2]


def wait_for(text, screen):
    deadline = time.monotonic() + 60
    while text not in screen.getvalue():
        assert time.monotonic() < deadline, screen.getvalue()
        time.sleep(0.01)


def test_a_quick_start_shows_nothing():
    screen = Screen()
    with ProgressLine("loading", screen, patience_s=600):
        logging.getLogger("quire.worker.loading").info("loaded")
    assert screen.getvalue() == ""


def test_a_long_start_shows_the_last_message_and_leaves_an_empty_line():
    screen = Screen()
    with ProgressLine("loading demo", screen, patience_s=0.0):
        wait_for("s: loading demo", screen)
        logging.getLogger("quire.native.build").info("compiling 3 kernels\nwith flags")
        wait_for("s: compiling 3 kernels", screen)
    assert screen.last_line == ""
    assert "flags" not in screen.getvalue()


def test_a_warning_is_not_printed_behind_the_line(monkeypatch):
    screen = Screen()
    printer = logging.StreamHandler(screen)
    printer.setLevel(logging.WARNING)
    monkeypatch.setattr(logging.getLogger(), "handlers", [printer])
    with ProgressLine("loading", screen, patience_s=0.0):
        wait_for("loading", screen)
        logging.getLogger("quire.worker").warning("only 1 core")
    shown = screen.getvalue()
    assert shown[: shown.index("only 1 core")].endswith(ERASE)


def test_without_a_terminal_nothing_is_shown():
    stream = io.StringIO()
    with ProgressLine("loading", stream, patience_s=0.0):
        logging.getLogger("quire.worker").info("loaded")
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_the_level_of_quire_which_its_processes_take_is_unchanged():
    quire, worker = logging.getLogger("quire"), logging.getLogger("quire.worker")
    before = quire.getEffectiveLevel(), worker.level
    with ProgressLine("loading", Screen(), patience_s=600):
        assert quire.getEffectiveLevel() == before[0]
    assert (quire.getEffectiveLevel(), worker.level) == before


def test_the_line_is_removed_after_an_error_too():
    screen = Screen()

    def fail():
        with ProgressLine("loading", screen, patience_s=0.0):
            wait_for("loading", screen)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert screen.last_line == ""


def test_a_terminal_that_cannot_erase_a_line_shows_nothing(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    with ProgressLine("loading", screen, patience_s=0.0):
        time.sleep(0.01)
    assert screen.getvalue() == ""
