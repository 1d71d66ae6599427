"""Syntax checks of a client's regular expression. Unsupported syntax is refused by name.

The dialect is that of Rust's `regex` crate. An automaton has no memory, so lookaround and
backreferences are not supported. Where Rust parses a character class differently from other
dialects (`&&`, `--`, `~~` and a nested `[`), the characters must be escaped. The whole completion
must match, so an anchor at either end is redundant and removed; anywhere else it is refused. All
groups and classes must be closed, because the expression is embedded in others.
"""

import re
from collections.abc import Iterator

from quire.errors import GrammarError

MAX_REGEX_LENGTH = 32 * 1024
MAX_DEPTH = 200  # of groups
_GROUPS = {
    "(?=": "a lookahead",
    "(?!": "a lookahead",
    "(?<=": "a lookbehind",
    "(?<!": "a lookbehind",
    "(?>": "an atomic group",
    "(?#": "a comment",
    "(?P=": "a backreference",
    "(?P>": "a recursive group",
    "(?(": "a conditional group",
}
_CLASS_OPERATORS = ("&&", "--", "~~")
_TOKEN = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\.|\[\^?\]?|[\s\S]", re.DOTALL)
_ANCHORS = ("^", "$", r"\A", r"\z", r"\Z")
_MANY = (r"\D", r"\S", r"\W", r"\p", r"\P")  # escapes that match many characters
_LEADING_FLAGS = re.compile(r"\(\?[is]+\)")
_FLAGS_BESIDES_I = re.compile(r"\(\?[a-zA-Z-]*[a-hj-zA-Z-][a-zA-Z-]*[:)]")
_NUL = re.compile(r"\\x00|\\x\{0+\}|\\u0000|\\u\{0+\}|\\U00000000|\x00")


def check_regex(expression: str, where: str) -> None:
    """Check that an expression is supported; linear in its length.

    Args:
        expression: Regular expression of a client.
        where: Name of the expression in error messages.

    Raises:
        GrammarError: It is too long, not valid text, uses unsupported syntax, or has an unclosed
            group or class, which would extend into the expression around it.
    """
    if len(expression) > MAX_REGEX_LENGTH:
        raise GrammarError(
            f"{where} has {len(expression)} characters; at most {MAX_REGEX_LENGTH} are allowed"
        )
    check_text(expression, where)
    flags = _FLAGS_BESIDES_I.search(expression, _end_of_leading_flags(expression))
    if flags:
        raise GrammarError(
            f"{where} uses the flags '{flags.group()}'; only (?i), and (?s) at the start, are "
            "supported"
        )
    in_class = False
    depth = 0
    for match in _TOKEN.finditer(expression := without_anchors(expression)):
        token = match.group()
        if token == "\\":
            raise _malformed(where, "it ends with a backslash")
        if token in _ANCHORS and not in_class:
            raise GrammarError(f"{where} has the anchor {token}, supported only at its two ends")
        if not in_class and _NUL.match(expression, match.start()):
            raise GrammarError(f"{where} has the character U+0000, which is not supported")
        if token[0] == "\\":
            _check_escape(token, in_class, where)
        elif in_class:
            in_class = token != "]"
            _check_in_class(expression, match.start(), where)
        elif token[0] == "[":
            in_class = True
        elif token == "(":
            depth += 1
            if depth > MAX_DEPTH:
                raise GrammarError(f"{where} has groups nested more than {MAX_DEPTH} deep")
            _check_group(expression, match.start(), where)
        elif token == ")":
            depth -= 1
            if depth < 0:
                raise _malformed(where, f"nothing opens the ')' at character {match.start()}")
    if depth or in_class:
        raise _malformed(where, f"a '{'[' if in_class else '('}' is not closed")


def check_text(text: str, where: str) -> None:
    """Raise a GrammarError if the text has a lone surrogate, which is not valid in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise GrammarError(f"{where} has a lone surrogate, which is not valid text") from None


def without_anchors(expression: str) -> str:
    r"""Remove `^` or `\A` from the start and `$`, `\z` or `\Z` from the end."""
    expression = expression.removeprefix("^").removeprefix(r"\A")
    for end in ("$", r"\Z", r"\z"):
        body = expression.removesuffix(end)
        num_backslashes = len(body) - len(body.rstrip("\\"))
        if body != expression and num_backslashes % 2 == 0:
            return body
    return expression


def without_nul(expression: str) -> str:
    r"""Return the expression so that it does not match the character U+0000.

    Parts that match many characters (a class, `.`, `\D`) are rewritten to exclude it.
    """
    start = _end_of_leading_flags(expression)
    leading = expression[:start]
    dot = r"[^\x00]" if "s" in leading else r"[^\n\x00]"
    return leading + "".join(_without_nul(expression[start:], dot))


def _end_of_leading_flags(expression: str) -> int:
    flags = _LEADING_FLAGS.match(expression)
    return flags.end() if flags else 0


def _without_nul(expression: str, dot: str) -> Iterator[str]:
    in_class = False
    for match in _TOKEN.finditer(expression):
        token = match.group()
        if in_class:
            in_class = token != "]"
            yield token if in_class else r"]&&[^\x00]]"
        elif token[0] == "[":
            in_class = True
            yield f"[{token}"
        elif token == ".":
            yield dot
        elif token[:2] in _MANY:
            yield rf"[{token}&&[^\x00]]"
        else:
            yield token


def _malformed(where: str, why: str) -> GrammarError:
    """Return the error of an expression that is not valid by itself."""
    return GrammarError(f"{where} is not a valid regular expression: {why}")


def _check_escape(token: str, in_class: bool, where: str) -> None:
    if not in_class and len(token) == 2 and token[1] in "123456789k":
        raise GrammarError(f"{where} uses a backreference ({token}), which is not supported")


def _check_group(expression: str, start: int, where: str) -> None:
    for opening, name in _GROUPS.items():
        if expression.startswith(opening, start):
            raise GrammarError(
                f"{where} uses {name} ('{opening}' at character {start}), which the outlines "
                "backend does not support"
            )


def _check_in_class(expression: str, start: int, where: str) -> None:
    pair = expression[start : start + 2]
    if pair in _CLASS_OPERATORS or pair[0] == "[":
        raise GrammarError(
            f"{where} has {pair if pair in _CLASS_OPERATORS else '['!r} inside a character class "
            f"(at character {start}); escape each of its characters with a backslash"
        )
