"""A plugin's own error is for the log; its request fails with one that names the plugin."""

import logging

from quire.errors import RequestFailedError
from quire.frontend.plugin_failure import plugin_failure

CAUSE = KeyError("secret")


def test_the_log_has_the_cause_and_the_caller_the_name_of_the_part(caplog):
    failure = plugin_failure(CAUSE, "plugin acme", "while parsing a prompt")
    assert type(failure) is RequestFailedError
    assert str(failure) == "plugin acme failed while parsing a prompt; see the log"
    assert failure.__cause__ is CAUSE
    (record,) = caplog.records
    assert (record.levelno, record.exc_info[1]) == (logging.ERROR, CAUSE)
    assert record.getMessage() == "plugin acme failed while parsing a prompt"


def test_the_caller_may_read_other_words_than_the_log(caplog):
    failure = plugin_failure(
        CAUSE, "plugin acme", "while checking a constraint", subject="on this constraint"
    )
    assert str(failure) == "plugin acme failed on this constraint; see the log"
    assert caplog.messages == ["plugin acme failed while checking a constraint"]
