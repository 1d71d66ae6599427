"""Limits of the constraint `choice`."""

from quire.errors import GrammarError
from quire_structured_output.regex_syntax import check_text

MAX_CHOICES = 2_000
MAX_CHOICE_LENGTH = 128 * 1024  # of all choices together


def check_choice(choices: tuple[str, ...]) -> None:
    """Check the strings of a choice.

    Raises:
        GrammarError: There are none, too many, or one is not text.
    """
    if not choices:
        raise GrammarError("choice is empty; it must have at least one string")
    if not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choice must have strings only")
    if len(choices) > MAX_CHOICES or sum(map(len, choices)) > MAX_CHOICE_LENGTH:
        raise GrammarError(
            f"choice may have at most {MAX_CHOICES} strings of {MAX_CHOICE_LENGTH} characters in "
            "total"
        )
    for choice in choices:
        check_text(choice, "choice")
        if "\0" in choice:
            raise GrammarError("choice has the character U+0000, which is not supported")
