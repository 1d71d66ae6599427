"""A parser's error is logged with the parser's name, which may be a path: no client sees it."""

import pytest

from quire.errors import InvalidRequestError, RequestFailedError
from quire.frontend.chat.parsing.parser_guard import ParserOrigin, guarded
from quire.plugins.registry import Source

SOURCE = Source("bad.py", "file", "4d4ee78237b5")
BAD = ParserOrigin(SOURCE, "tool-call parser '/plugins/bad.py:Mine'")


def fail():
    raise KeyError("secret")


def test_the_log_has_the_path_and_the_client_the_name_of_the_file(caplog):
    with pytest.raises(RequestFailedError) as caught:
        guarded(fail, BAD)
    part = "plugin bad.py (file 4d4ee78237b5) failed while parsing the completion"
    assert str(caught.value) == f"{part}; see the log"
    assert caplog.messages == [f"tool-call parser '/plugins/bad.py:Mine' of {part}"]
    assert "secret" in caplog.text


def test_a_parser_without_a_plugin_fails_as_well(caplog):
    with pytest.raises(RequestFailedError, match="the parser failed while counting"):
        guarded(fail, None, "counting")
    assert caplog.messages == ["the parser failed while counting"]


def test_what_is_right_or_refused_is_passed_on(caplog):
    def refuse():
        raise InvalidRequestError("no", param="tools")

    assert guarded(lambda: 1, BAD) == 1
    with pytest.raises(InvalidRequestError, match="no"):
        guarded(refuse, BAD)
    assert not caplog.messages
