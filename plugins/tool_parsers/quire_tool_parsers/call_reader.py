"""The interface of readers of one call, of which there is one for each notation of arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire_tool_parsers.json_scan import BrokenCallError, Characters, run_end


class CallReader(ABC):
    """Reads the text of one call from behind its opening marker, and writes its arguments as JSON.

    The text that it is given begins with what it has not consumed so far. So it consumes a
    character only once it is certain what the character belongs to, and keeps nothing back.

    Attributes:
        name: Name of the tool; None until it is complete.
        id: Id of the call, if the model has written one.
        is_complete: True at the end of the call.
        is_broken: True if the text cannot become a call any more. What broke it is not consumed: it
            may begin something else.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.is_complete = False
        self.is_broken = False
        self._arguments: list[str] = []  # pieces of JSON text
        self._num_taken = 0

    @abstractmethod
    def read(self, text: str, *, is_last: bool) -> int:
        """Read text; return the number of characters consumed.

        It stops once the name is complete, since the call may end there: it may be of no tool.

        Args:
            text: Text from the first character on that was not consumed.
            is_last: Whether nothing follows it.
        """

    def take_arguments(self) -> str:
        """Return the arguments' new JSON text since the last call; empty before the name."""
        if self.name is None:
            return ""
        text = "".join(self._arguments[self._num_taken :])
        self._num_taken = len(self._arguments)
        return text


class ScanningReader(CallReader):
    """A reader that asks for one character after the other, or for a run of them."""

    def __init__(self) -> None:
        super().__init__()
        self._scan = self.scan()
        self._wanted = next(self._scan)

    @abstractmethod
    def scan(self) -> Characters:
        """Read the call; the generator is sent its characters, and returns at its end."""

    def read(self, text: str, *, is_last: bool) -> int:
        """Read text; return the number of characters consumed."""
        del is_last
        start = end = 0
        had_name = self.name is not None
        try:
            while start < len(text) and (had_name or self.name is None):
                end = run_end(self._wanted, text, start)
                self._wanted = self._scan.send(text[start:end])
                start = end
        except BrokenCallError:
            self.is_broken = True
            return start
        except StopIteration:
            self.is_complete = True
            return end
        return start
