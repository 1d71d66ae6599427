"""Fields that a request body has and its structs do not: taken out, so that each can be checked."""

from collections.abc import Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec


class Undeclared(msgspec.Struct, frozen=True):
    """Fields that an object within a body has, and its struct does not declare.

    Attributes:
        where: Path of the object in the body.
        given: The fields.
        known: Names of the fields that the object may have.
    """

    where: str
    given: dict[str, Any]
    known: tuple[str, ...]


def take_undeclared(value: Any, kind: Any, where: str = "") -> Iterator[Undeclared]:
    """Remove from a decoded value the fields that its structs do not declare, and yield them.

    Values of wrong types are left as they are; converting the value names them.

    Args:
        value: Value as decoded from JSON; it is changed.
        kind: Type that it is converted to.
        where: Path of the value in the body.
    """
    for option in _options(kind):
        if isinstance(value, dict) and _is_struct(option):
            known = option.__struct_encode_fields__
            if given := {name: value.pop(name) for name in [*value] if name not in known}:
                yield Undeclared(where, given, known)
            for name, inner in _typed_fields(option):
                if name in value:
                    path = f"{where}.{name}" if where else name
                    yield from take_undeclared(value[name], inner, path)
        elif isinstance(value, list) and get_origin(option) is list:
            for i, item in enumerate(value):
                yield from take_undeclared(item, get_args(option)[0], f"{where}[{i}]")


@cache
def _typed_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a struct whose values have structs, and their types."""
    fields = msgspec.structs.fields(kind)
    return tuple((field.encode_name, field.type) for field in fields if _options(field.type))


@cache
def _options(kind: Any) -> tuple[Any, ...]:
    """Return the structs, and the lists of structs, that a value of a type may be."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _options(inner[0])
    if origin in (Union, UnionType):
        return tuple(option for each in inner for option in _options(each))
    if origin is list:
        return (kind,) if _options(inner[0]) else ()
    return (kind,) if _is_struct(kind) else ()


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
