"""What is complete of a JSON object whose text breaks off, for APIs that carry arguments as one."""

import re

from quire.frontend.chat.call_arguments import arguments_object

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
        (?P<mark> [{}\[\],:] )
      | "(?:[^"\\]|\\.)*+"
      | [^\s"{}\[\],:]++ (?= . )  # a word at the end may go on
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS = {"{": "}", "[": "]"}


def complete_members(text: str) -> str:
    """Return an object of the members that are complete, also of objects and lists within it.

    Args:
        text: The beginning of a JSON object; if it is that of anything else, the object is empty.
    """
    stack: list[str] = []  # what closes the objects and lists that are open
    follows_colon = False
    at = end = 0  # `end` is that of the last value, or of what opens one
    while (token := _TOKEN.match(text, at)) is not None:
        at = token.end()
        mark = token["mark"]
        is_key = mark is None and not follows_colon and stack[-1:] == ["}"]
        follows_colon = mark == ":"
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif stack and mark == stack[-1]:
            stack.pop()
        elif mark is not None or is_key:
            continue
        end = at
    found = text[:end] + "".join(reversed(stack))
    return "{}" if arguments_object(found) is None else found
