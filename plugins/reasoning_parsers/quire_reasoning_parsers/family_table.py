"""Tables of families: the formats of their reasoning, and which models have them."""

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from quire.interfaces.reasoning import ReasoningParserCapabilities
from quire_reasoning_parsers.tag_format import TagFormat

TABLE = Path(__file__).with_name("families.toml")


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A family of models.

    Attributes:
        format: Format of the reasoning.
        template_markers: Texts of the chat template, as in `ReasoningParserCapabilities`.
        alternative_markers: Further sets of them, as there.
        architectures: Architectures of the models, as there.
        priority: Rank for `auto`, as there.
    """

    format: TagFormat
    template_markers: tuple[str, ...] = ()
    alternative_markers: tuple[tuple[str, ...], ...] = ()
    architectures: tuple[str, ...] = ()
    priority: int = 0

    @property
    def capabilities(self) -> ReasoningParserCapabilities:
        """Capabilities of the family's parser."""
        form = self.format
        return ReasoningParserCapabilities(
            template_markers=self.template_markers,
            alternative_markers=self.alternative_markers,
            architectures=self.architectures,
            priority=self.priority,
            markers=(*form.open, *form.close, *form.wrapper_open, *form.wrapper_close),
            end_marker=form.close[0],
            end_spellings=form.close[1:],
            start_marker=form.open[0],
            start_spellings=form.open[1:],
            is_content=form.is_content,
        )


@cache
def read_families() -> dict[str, Family]:
    """Return the families of the table, by name."""
    return msgspec.convert(tomllib.loads(TABLE.read_text("utf-8")), dict[str, Family])
