"""Arguments of a call that nothing constrains: text up to what closes the call."""

from quire.interfaces.tool_parsing import EitherPiece, Piece, RegexPiece, TextPiece
from quire_tool_parsers.call_format import CallFormat

_STRING = r'"(?:[^"\\]|\\[\s\S])*"' "|" r"'(?:[^'\\]|\\[\s\S])*'"
_OTHER = r"""[^()"']"""
_DEPTH = 2  # of brackets in Python's arguments


def free_body(form: CallFormat, head: str, tail: str) -> list[Piece]:
    """Return the pieces of the arguments and of the text behind them; empty: nothing ends them.

    Args:
        form: Format of the call.
        head: Text before the arguments.
        tail: Template of the text behind them.
    """
    if form.notations[0] == "python":
        return [RegexPiece(_python_arguments(), after=tail)] if tail.startswith(")") else []
    closers = [each for each in (*form.call_close, *form.section_close) if each in tail]
    end = max(closers, key=lambda each: (tail.rfind(each), -len(each)), default=tail.strip())
    if not end:
        return []
    text, behind = TextPiece(True, end), tail[tail.rfind(end) + len(end) :]
    rest: list[Piece] = [behind] if behind else []
    if head.endswith("$name"):  # the name ends where a blank or a tag follows
        openings = ("\n", *(form.tags.parameter_open if form.tags else ()))
        return [EitherPiece(((end,), *((each, text) for each in openings))), *rest]
    return [text, *rest]


def _python_arguments() -> str:
    """Return the regex of a text in which strings and brackets are closed."""
    found = f"(?:{_OTHER}|{_STRING})*"
    for _ in range(_DEPTH):
        found = rf"(?:{_OTHER}|{_STRING}|\({found}\))*"
    return found
