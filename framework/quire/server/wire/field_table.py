"""What happens to each field of an operation's body, from its struct and its table of refusals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from quire.server.wire.common_fields import NO_EFFECT, NOT_SUPPORTED
from quire.server.wire.fields import Refusal
from quire.server.wire.protocol import ChatBody

Handling = Literal["honoured", "no effect", "refused"]


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field.

    Attributes:
        name: Name, with the object that it is in, as in `stream_options.include_usage`.
        handling: What happens to it.
        text: What it means, why it has no effect, or what to do instead.
    """

    name: str
    handling: Handling
    text: str

    def markdown(self) -> str:
        """Return the row of a table."""
        return f"| `{self.name}` | {self.handling} | {self.text} |"


@dataclass(frozen=True, slots=True)
class FieldTable:
    """The fields of an operation that takes a body.

    A field has a description (`about`), or one that says why it has no effect (`no_effect`). One
    without has the meaning of the field of the same name in a chat.

    Attributes:
        operation: Method and path.
        body: Struct of the body.
        refused: Known fields that are not supported.
    """

    operation: str
    body: type[msgspec.Struct]
    refused: Mapping[str, Refusal] = field(default_factory=dict)

    def rows(self) -> list[FieldRow]:
        """Return all fields: those that are honoured, those of no effect, those refused."""
        declared = list(_declared(self.body))
        refused = (
            FieldRow(name, "refused", _way_out(refusal))
            for name, refusal in self.refused.items()
            if name not in self.body.__struct_fields__
        )
        rows = [*declared, *refused]
        order = get_args(Handling)
        return sorted(rows, key=lambda row: (order.index(row.handling), row.name))


def _declared(kind: type[msgspec.Struct], where: str = "") -> Iterator[FieldRow]:
    """Yield the fields of a struct; in place of a field with a struct of its own, its fields."""
    hints = get_type_hints(kind, include_extras=True)
    for declared in msgspec.structs.fields(kind):
        name = where + declared.encode_name
        hint = hints[declared.name]
        inner = [each for each in get_args(hint) if _is_struct(each)]
        if inner:
            yield from _declared(inner[0], f"{name}.")
        else:
            yield _row(name, _description(hint) or _CHAT.get(name, ""))


def _row(name: str, description: str) -> FieldRow:
    for mark, handling in _MARKS.items():
        if description.startswith(mark):
            return FieldRow(name, handling, description.removeprefix(mark).rstrip("."))
    return FieldRow(name, "honoured", description.rstrip("."))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _description(hint: Any) -> str:
    if get_origin(hint) is not Annotated:
        return ""
    found = [each for each in hint.__metadata__ if isinstance(each, msgspec.Meta)]
    return next((each.description for each in found if each.description), "")


_MARKS: dict[str, Handling] = {NO_EFFECT: "no effect", NOT_SUPPORTED: "refused"}
_CHAT = {
    name: _description(hint) for name, hint in get_type_hints(ChatBody, include_extras=True).items()
}


def _way_out(refusal: Refusal) -> str:
    """Return what to do instead, and the values that are accepted nevertheless."""
    values = " or ".join(f"`{msgspec.json.encode(value).decode()}`" for value in refusal.neutral)
    return f"{refusal.way_out} ({values} is accepted)" if values else refusal.way_out
