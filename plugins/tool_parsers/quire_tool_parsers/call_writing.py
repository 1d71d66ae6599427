"""How a model family writes its calls, as data: templates of the text that is forced."""

import msgspec


class CallWriting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Templates of calls, as the family's chat template writes them.

    In `calls`, `$name` stands for the name of the tool, `$number` for any number of up to four
    digits, and the arguments are either `$arguments`, a JSON object, or `$members`, one text by
    `argument` for each. In `argument`, `$key` stands for the name and `$value` for the value.

    Attributes:
        calls: A call; several are alternatives, of which the model chooses one.
        separator: Text between two calls.
        is_single: Whether a completion has one call at most.
        begin: Text before the first call.
        end: Text after the last call.
        argument: An argument with a value in JSON, or in Python's notation if that is the format's.
        text_argument: An argument whose value is a string, as plain text; empty: as others.
        argument_separator: Text between two arguments.
        triggers: Texts that begin calls in free text; empty: calls in free text have no grammar.
        excluded: Texts that free text does not contain, because the parser would read calls there.
        is_at_start: Whether calls in free text are only at its start.
    """

    calls: tuple[str, ...]
    separator: str = "\n"
    is_single: bool = False
    begin: str = ""
    end: str = ""
    argument: str = ""
    text_argument: str = ""
    argument_separator: str = ""
    triggers: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    is_at_start: bool = False

    def __post_init__(self) -> None:
        if not self.calls or not all("$name" in call for call in self.calls):
            raise ValueError("writing.calls must have a call with $name in it")
        if any("$members" in call for call in self.calls) and not self.argument:
            raise ValueError("writing.argument must be there, since a call has $members")
        for template in (self.argument, self.text_argument):
            if template and not ("$key" in template and template.count("$value") == 1):
                raise ValueError("an argument in writing must have $key and one $value")
