"""Arguments of a call for APIs that carry them as an object, not as text."""

import msgspec

from quire.errors import RequestFailedError
from quire.frontend.chat.call_arguments import arguments_object
from quire.server.routes.chat.strict_json import StrictJson


def strict_arguments(text: str) -> str:
    """Return the arguments of a call as strict JSON, with numbers and escapes as written.

    Raises:
        RequestFailedError: They are no JSON object; the parser has broken its contract.
    """
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return _strict(text)
    return text


def _strict(text: str) -> str:
    strict = StrictJson()
    found = strict.feed(text) + strict.close()
    if arguments_object(found) is None:
        raise RequestFailedError(
            "the tool-call parser has read a call whose arguments are no JSON object"
        )
    return found
