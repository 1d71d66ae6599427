"""Typed access to a `quantization_config`, and the sizes that several formats have in it."""

from collections.abc import Mapping
from typing import Any

from quire.errors import RefusedError
from quire.layers.config_values import ConfigValues

WHOLE_ROW = -1  # as a group size


def values_of(config: Mapping[str, Any], method: str) -> ConfigValues:
    """Return the values of a `quantization_config`, whose errors name the method and the key."""
    return ConfigValues(config, method, prefix="quantization_config.")


def group_size_of(values: ConfigValues, key: str = "group_size") -> int | None:
    """Return the number of inputs that share a scale; None: all, or the config does not say it.

    Raises:
        UnsupportedModelError: It is no such number.
    """
    size = values.config.get(key)
    if size is None or (size == WHOLE_ROW and type(size) is int):
        return None
    if type(size) is not int or size < 1:
        raise values.wrong(key, size, "a whole number above 0, or -1 for all inputs of an output")
    return size


def refused(values: ConfigValues, key: str, supported: str) -> RefusedError:
    """Return the error that the method does not read the value of a key.

    Args:
        values: Values of the config.
        key: Key of the value.
        supported: Description of the values that are read: "2, 3, 4 or 8".
    """
    return RefusedError(
        f"{values.prefix}{key} in config.json is {values.config.get(key)!r}; quire reads "
        f"{values.architecture} with {supported}: use a checkpoint with that, or correct the value"
    )
