"""Errors of OpenAI's shape and streams of named events, for all routes under /v1/responses."""

from quire.server.wire.dialect import COMMENT, EVENTS, OPENAI, Dialect, StreamFormat

_TYPE = b'{"type":"'  # with which the JSON text of each event begins


def _event(event: bytes) -> bytes:
    """Return an event with its name, which is its type; an error has none."""
    name = b"error"
    if event.startswith(_TYPE):
        name = event[len(_TYPE) : event.index(b'"', len(_TYPE))]
    return b"event: %b\ndata: %b\n\n" % (name, event)


RESPONSES = Dialect(OPENAI.error, StreamFormat(EVENTS, _event, keep_alive=COMMENT))
