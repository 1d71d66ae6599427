"""Reader of the arguments of a call whose name is known: a JSON object."""

from quire_tool_parsers.call_reader import ScanningReader
from quire_tool_parsers.json_scan import Characters, after_blanks, parse, read_container, refuse


class ArgumentsReader(ScanningReader):
    """Reader of a JSON object, with blanks before it."""

    def scan(self) -> Characters:
        """Read the object."""
        character = yield from after_blanks()
        if character != "{":
            refuse("arguments must be one JSON object")
        yield from read_container(character, self._arguments)
        parse(self._arguments)

    @property
    def has_begun(self) -> bool:
        """Whether the object has begun."""
        return bool(self._arguments)

    def take_arguments(self) -> str:
        """Return the arguments' new JSON text since the last call."""
        text = "".join(self._arguments[self._num_taken :])
        self._num_taken = len(self._arguments)
        return text
