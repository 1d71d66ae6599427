"""Typed access to the values of a config.json; defaults are explicit, and errors name the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.errors import UnsupportedModelError

_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class ConfigValues:
    """A checkpoint's config.json, read value by value.

    A key whose value is null counts as missing, as transformers writes it. A method called without
    a default requires the key.

    Attributes:
        config: The mapping.
        architecture: Name of the architecture for error messages.
        prefix: Path of the mapping in the file for error messages, such as "rope_parameters.".
        aliases: Keys that the architecture has under another name: usual key -> key in the file.
    """

    config: Mapping[str, Any]
    architecture: str
    prefix: str = field(default="")
    aliases: Mapping[str, str] = field(default_factory=dict)

    def has(self, key: str) -> bool:
        """Return whether the file has a value for the key, other than null."""
        return self.config.get(self.aliases.get(key, key)) is not None

    def count(self, key: str, default: int = _REQUIRED) -> int:
        """Return an integer that is at least 1 (the default may be any value).

        Raises:
            UnsupportedModelError: The value is missing or is not such an integer.
        """
        value = self._get(key, default)
        if value is not default and (not _is_int(value) or value < 1):
            raise self._wrong(key, value, "a whole number from 1")
        return int(value)

    def whole(self, key: str, default: int = _REQUIRED) -> int:
        """Return an integer that is at least 0.

        Raises:
            UnsupportedModelError: The value is missing or is not such an integer.
        """
        value = self._get(key, default)
        if not _is_int(value) or value < 0:
            raise self._wrong(key, value, "a whole number from 0")
        return int(value)

    def positive(self, key: str, default: float = _REQUIRED) -> float:
        """Return a finite number above zero.

        Raises:
            UnsupportedModelError: The value is missing or is not such a number.
        """
        value = self._get(key, default)
        if not _is_positive(value):
            raise self._wrong(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Return a boolean.

        Raises:
            UnsupportedModelError: The value is missing or is not a boolean.
        """
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a string.

        Raises:
            UnsupportedModelError: The value is missing or is not a string.
        """
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a JSON object; an empty one if the key is missing.

        Raises:
            UnsupportedModelError: The value is not an object.
        """
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "an object")
        return value

    def nested(self, key: str) -> ConfigValues:
        """Return the values of a JSON object, whose errors have the key's path; empty if missing.

        Raises:
            UnsupportedModelError: The value is not an object.
        """
        return ConfigValues(self.mapping(key), self.architecture, prefix=f"{self.prefix}{key}.")

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; an empty one if the key is missing.

        Raises:
            UnsupportedModelError: The value is not a list of strings.
        """
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return tuple(value)

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return a list of integers that are at least 0; an empty one if the key is missing.

        Raises:
            UnsupportedModelError: The value is not such a list.
        """
        value = self._get(key, [])
        if not isinstance(value, list) or not all(_is_int(item) and item >= 0 for item in value):
            raise self._wrong(key, value, "a list of whole numbers from 0")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers above zero, of which there is at least one.

        Raises:
            UnsupportedModelError: The value is missing or is not such a list.
        """
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or not value or not all(map(_is_positive, value)):
            raise self._wrong(key, value, "a list of numbers above 0")
        return tuple(map(float, value))

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(self.aliases.get(key, key))
        if value is not None:
            return value
        if default is _REQUIRED:
            raise UnsupportedModelError(
                f"{self.architecture}: config.json has no {self.prefix}{self.aliases.get(key, key)}"
            )
        return default

    def _wrong(self, key: str, value: object, wanted: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self.architecture}: {self.prefix}{self.aliases.get(key, key)} in config.json must "
            f"be {wanted}, got {value!r}"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0
