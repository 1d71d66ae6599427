"""Typed access to the values of a config.json; defaults are explicit, and errors name the key."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.errors import UnsupportedModelError

_REQUIRED: Any = object()
MAX_COUNT = 2**31 - 1
MAX_COUNTS = {"num_hidden_layers": 10_000, "head_dim": 65_536}  # of what is made one by one
MAX_FLOAT = 3.4028234663852886e38  # of float32, in which layers compute


@dataclass(frozen=True, slots=True)
class ConfigValues:
    """A checkpoint's config.json, read value by value.

    A key whose value is null counts as missing, as transformers writes it; a flag is false then. A
    method called without a default requires the key.

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
        """Return an integer from 1 to a limit (the default may be any value).

        Raises:
            UnsupportedModelError: The value is missing or is not such an integer.
        """
        value, limit = self._get(key, default), MAX_COUNTS.get(key, MAX_COUNT)
        if value is not default and not _is_whole(value, 1, limit):
            raise self.wrong(key, value, f"a whole number from 1 to {limit}")
        return int(value)

    def whole(self, key: str, default: int = _REQUIRED) -> int:
        """Return an integer that is at least 0.

        Raises:
            UnsupportedModelError: The value is missing or is not such an integer.
        """
        value = self._get(key, default)
        if not _is_whole(value, 0):
            raise self.wrong(key, value, f"a whole number from 0 to {MAX_COUNT}")
        return int(value)

    def positive(self, key: str, default: float = _REQUIRED) -> float:
        """Return a finite number above zero.

        Raises:
            UnsupportedModelError: The value is missing or is not such a number.
        """
        value = self._get(key, default)
        if not _is_positive(value):
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Return a boolean; null is false, as in transformers.

        Raises:
            UnsupportedModelError: The value is missing or is not a boolean.
        """
        if self.config.get(self.aliases.get(key, key), _REQUIRED) is None:
            return False
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """Return a string.

        Raises:
            UnsupportedModelError: The value is missing or is not a string.
        """
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Return a JSON object; an empty one if the key is missing.

        Raises:
            UnsupportedModelError: The value is not an object.
        """
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.wrong(key, value, "an object")
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
            raise self.wrong(key, value, "a list of strings")
        return tuple(value)

    def wholes(self, key: str) -> tuple[int, ...]:
        """Return a list of integers that are at least 0; an empty one if the key is missing.

        Raises:
            UnsupportedModelError: The value is not such a list.
        """
        value = self._get(key, [])
        if not isinstance(value, list) or not all(_is_whole(item, 0) for item in value):
            raise self.wrong(key, value, f"a list of whole numbers from 0 to {MAX_COUNT}")
        return tuple(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers above zero, of which there is at least one.

        Raises:
            UnsupportedModelError: The value is missing or is not such a list.
        """
        value = self._get(key, _REQUIRED)
        if not isinstance(value, list) or not value or not all(map(_is_positive, value)):
            raise self.wrong(key, value, "a list of numbers above 0")
        return tuple(map(float, value))

    def with_values(self, values: Mapping[str, Any]) -> ConfigValues:
        """Return the same with other values for some keys; null takes a value away."""
        layers: list[Any] = [values, self.config]
        return replace(self, config=ChainMap(*layers))

    def wrong(self, key: str, value: object, wanted: str) -> UnsupportedModelError:
        """Return the error that a value is not what the architecture needs.

        Args:
            key: Key of the value.
            value: The value.
            wanted: Description of the values that the key may have, such as "true or false".
        """
        return UnsupportedModelError(
            f"{self.architecture}: {self.prefix}{self.aliases.get(key, key)} in config.json must "
            f"be {wanted}, got {value!r}"
        )

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(self.aliases.get(key, key))
        if value is not None:
            return value
        if default is _REQUIRED:
            raise UnsupportedModelError(
                f"{self.architecture}: config.json has no {self.prefix}{self.aliases.get(key, key)}"
            )
        return default


def _is_whole(value: object, least: int, most: int = MAX_COUNT) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return least <= value <= most


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value <= MAX_FLOAT
