"""Loading reports its size to the log, and its progress to a terminal."""

import io
import logging
import sys

from quire.worker.loading.progress import loading_progress, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_line(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with caplog.at_level(logging.INFO), loading_progress("demo") as progress:
        progress(1_000_000, 2_000_000)
        progress(2_000_000, 2_000_000)
    assert len(caplog.records) == 1
    assert "loaded demo: 2.0 MB" in caplog.text
    assert sys.stderr.getvalue() == ""


def test_a_terminal_gets_no_bar_for_what_is_quick_or_if_it_cannot_erase_one(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with loading_progress("demo", patience_s=600.0) as progress:
        progress(1_000_000, 2_000_000)
    monkeypatch.setenv("TERM", "dumb")
    with loading_progress("demo", patience_s=0.0) as progress:
        progress(1_000_000, 2_000_000)
    assert terminal.getvalue() == ""


def test_a_terminal_gets_a_bar_if_loading_takes_long(monkeypatch):
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with loading_progress("demo", patience_s=0.0) as progress:
        progress(1_000_000, 2_000_000)
    assert "demo" in terminal.getvalue()
    assert "MB" in terminal.getvalue()


def test_silent_reports_nothing(capsys):
    silent(1, 2)
    assert capsys.readouterr() == ("", "")
