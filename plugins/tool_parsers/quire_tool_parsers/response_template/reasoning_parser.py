"""Reasoning and content of a checkpoint's own `response_template`."""

from collections.abc import Iterator
from typing import ClassVar

from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
    ReasoningParserCapabilities,
)
from quire_tool_parsers.response_template.regions import Closed, Opened, Part, Regions, Text
from quire_tool_parsers.response_template.template import (
    CONTENT,
    THINKING,
    Field,
    Template,
    read_template,
)

MAX_PROMPT = 4096  # characters
BETWEEN_REGIONS = "\n"  # of one field, unless it has `join`


class TemplateReasoningParser(ReasoningParser):
    """Parser of the regions `thinking` and `content`; what is in others is passed on as it is.

    Attributes:
        template: The template.
    """

    template: ClassVar[Template]

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        self._regions = Regions(self.template.fields.values())
        self._writers = {name: _Writer(name) for name in (THINKING, CONTENT)}
        self._num_prompted = 0
        for part in self._regions.feed(self.template.start.behind_last(prompt_text[-MAX_PROMPT:])):
            list(self._read(part))
        for writer in self._writers.values():
            writer.begin()
        self._num_prompted = self._regions.num_held  # characters of the prompt that are to come

    @classmethod
    def from_file_text(cls, text: str) -> type[ReasoningParser]:
        """Return the parser of a template.

        Args:
            text: JSON text of the template.

        Raises:
            ValueError: The template is invalid, or there is nothing in it for a reasoning parser.
        """
        template = read_template(text)
        for name in (THINKING, CONTENT):
            _check(template.fields.get(name))
        content = template.fields.get(CONTENT)
        if THINKING not in template.fields and (content is None or content.open is None):
            raise ValueError(f"fields.{THINKING} is missing")
        body = {
            "template": template,
            "capabilities": _capabilities(template),
            "__module__": __name__,
        }
        return type("ResponseTemplateReasoning", (cls,), body)

    @property
    def is_thinking(self) -> bool:
        """Whether the next text belongs to the reasoning."""
        field = self._regions.next_field
        return field is not None and field.name == THINKING

    def feed(self, delta: str) -> list[ReasoningEvent]:
        """Parse the next piece of output; return the events that are certain by now."""
        return [event for part in self._regions.feed(delta) for event in self._read(part)]

    def close(self) -> list[ReasoningEvent]:
        """Return what was held back; blanks at the end of a region are dropped."""
        return [event for part in self._regions.close() for event in self._read(part)]

    def _read(self, part: Part) -> Iterator[ReasoningEvent]:
        part = self._without_prompt(part)
        writer = None if part.field is None else self._writers.get(part.field.name)
        if writer is not None:
            yield from writer.read(part)
        elif part.field is not None:
            text = part.text if not isinstance(part, Opened | Closed) else part.marker
            if text:
                yield ContentDelta(text)

    def _without_prompt(self, part: Part) -> Part:
        """Return a part without text that the prompt has; a marker that it began stays whole."""
        text = part.marker if isinstance(part, Opened | Closed) else part.text
        num = min(self._num_prompted, len(text))
        self._num_prompted -= num
        return Text(part.field, text[num:]) if isinstance(part, Text) else part


class _Writer:
    """Writes the text of one field, without the blanks around it if the field strips them.

    Args:
        name: Name of the field.
    """

    def __init__(self, name: str) -> None:
        self._event = ReasoningDelta if name == THINKING else ContentDelta
        self._blanks = ""
        self._has_text = False  # in this region
        self._separator = ""

    def begin(self) -> None:
        """Begin the completion behind the prompt, whose text is not part of it."""
        self._blanks = self._separator = ""

    def read(self, part: Part) -> Iterator[ReasoningEvent]:
        """Return the text that is certain by now."""
        if part.field is None or isinstance(part, Opened):
            return
        if isinstance(part, Closed):
            if self._has_text:
                join = part.field.spec.join
                self._separator = BETWEEN_REGIONS if join is None else join
            self._blanks, self._has_text = "", False
            return
        text = self._blanks + part.text
        if part.field.strips:
            text = text if self._has_text else text.lstrip()
            words = text.rstrip()
            text, self._blanks = words, text[len(words) :]
        if text:
            yield self._event(self._separator + text)
            self._separator, self._has_text = "", True


def _check(field: Field | None) -> None:
    if field is not None and field.spec.transform not in (None, "{content}"):
        raise ValueError(f"fields.{field.name}: a transform of text is not supported")


def _capabilities(template: Template) -> ReasoningParserCapabilities:
    field = template.fields.get(THINKING)
    ends = () if field is None or field.close is None else field.close.texts
    starts = () if field is None or field.open is None else field.open.texts
    return ReasoningParserCapabilities(
        markers=template.markers(),
        end_marker=ends[0] if ends else None,
        end_spellings=ends[1:],
        start_marker=starts[0] if starts and ends else None,
        start_spellings=starts[1:] if ends else (),
    )
