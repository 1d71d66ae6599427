"""`plugin_failure`: error of a request whose plugin failed; the plugin's own error is logged."""

import logging

from quire.errors import RequestFailedError

logger = logging.getLogger(__name__)


def plugin_failure(
    error: BaseException,
    part: str,
    action: str,
    *,
    subject: str | None = None,
    logged_part: str | None = None,
) -> RequestFailedError:
    """Log an error of a plugin, and return the one that its request fails with.

    Args:
        error: Error that the plugin raised; the cause of the returned one.
        part: Name of the part that failed, such as "plugin acme".
        action: Words for the log that follow "failed", such as "while parsing a prompt".
        subject: Words that follow "failed" for the caller; None for `action`.
        logged_part: Name of the part for the log, such as its path; None for `part`.
    """
    logger.error("%s failed %s", logged_part or part, action, exc_info=error)
    failure = RequestFailedError(f"{part} failed {subject or action}; see the log")
    failure.__cause__ = error
    return failure
