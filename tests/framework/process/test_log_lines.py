"""No text in a record begins a line of the log, or commands a terminal."""

import io
import json
import logging
import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.process.log_lines import VARIABLE, LineFormatter, log_handler, one_record

ESC = "\x1b"
HOSTILE = ["\r", ESC + "[2J", "\x00", "\x7f", "\x85", "\x9b31m", "\u2028", "\u202e", "\u2066", "\b"]


@given(st.text())
def test_every_record_is_one_line_and_indented_ones(text):
    first, *rest = one_record(text).split("\n")
    assert all(line.startswith("    ") for line in rest)
    allowed = {"\n", "\t"}
    for part in (first, *rest):
        assert not [c for c in part if ord(c) < 32 and c not in allowed]
        assert not set(part) & set("\x7f\x85\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2069")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_what_is_seen_stays_as_it_is(text):
    assert one_record(text) == text


@pytest.mark.parametrize("mark", HOSTILE)
def test_a_mark_is_escaped_in_a_message_and_in_a_traceback(mark):
    written = io.StringIO()
    handler = log_handler()
    assert isinstance(handler, logging.StreamHandler)
    assert isinstance(handler.formatter, LineFormatter)
    handler.setStream(written)
    forged = f"x{mark}y\n2026-01-01 INFO quire: forged"
    record = logging.makeLogRecord(
        {"name": "quire", "levelname": "ERROR", "msg": "model %s", "args": (forged,)}
    )
    try:
        raise ValueError(forged)
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    handler.handle(record)
    first, *rest = written.getvalue().removesuffix("\n").split("\n")
    assert " ERROR quire: model x\\" in first
    assert all(line.startswith("    ") for line in rest)
    assert mark not in written.getvalue()
    assert "\n    2026-01-01 INFO quire: forged" in written.getvalue()


@pytest.mark.parametrize("mark", HOSTILE)
def test_as_json_a_record_is_one_line_of_ascii(mark, monkeypatch):
    monkeypatch.setenv(VARIABLE, "json")
    written = io.StringIO()
    handler = log_handler("worker 1")
    handler.setStream(written)
    try:
        raise ValueError(f"a{mark}b")
    except ValueError:
        record = logging.LogRecord(
            "quire.x", logging.ERROR, "x.py", 1, "model %s", (f"x{mark}\ny",), sys.exc_info()
        )
    handler.handle(record)
    line = written.getvalue()
    assert line.endswith("}\n")
    assert all(" " <= character <= "~" for character in line[:-1])
    found = json.loads(line)
    assert (found["level"], found["logger"]) == ("error", "quire.x")
    assert found["message"] == f"model x{mark}\ny"
    assert (found["process"], found["pid"]) == ("worker 1", os.getpid())
    assert f"ValueError: a{mark}b" in found["traceback"]


def test_as_text_a_child_process_has_its_name_in_the_line(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    handler = log_handler("engine 100%")
    record = logging.LogRecord("quire.x", logging.INFO, "x.py", 1, "hello", (), None)
    assert handler.format(record).endswith("INFO engine 100% quire.x: hello")


def test_lines_of_libraries_that_have_addresses_are_not_written():
    handler = log_handler()
    for name, level in (("httpx2", logging.INFO), ("mcp.client", logging.DEBUG)):
        line = logging.LogRecord(name, level, "", 0, "POST http://a/?api_key=K3Y", (), None)
        assert not handler.filter(line)
    assert handler.filter(logging.LogRecord("mcp", logging.WARNING, "", 0, "broken", (), None))
    assert handler.filter(logging.LogRecord("quire", logging.INFO, "", 0, "ready", (), None))
