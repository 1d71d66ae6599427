"""Checks of the sizes and dtypes that a layer gives to its KV-cache spec."""

from typing import Any

from quire.errors import SettingsError
from quire.interfaces.kv_cache import DTYPE_BYTES, KVLayer


def check_positive(layer_name: str, **sizes: Any) -> None:
    """Check sizes of a layer.

    Raises:
        SettingsError: A size is not an integer, or less than 1.
    """
    for what, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SettingsError(f"{what} of {layer_name} must be at least 1, got {size!r}")


def check_dtype(layer_name: str, dtype: str) -> None:
    """Check a dtype.

    Raises:
        SettingsError: It is not a key of `DTYPE_BYTES`.
    """
    if dtype not in DTYPE_BYTES:
        known = ", ".join(sorted(DTYPE_BYTES))
        raise SettingsError(f"unknown KV dtype {dtype!r} for {layer_name} (known: {known})")


def size_param(layer: KVLayer, name: str) -> int:
    """Return a size that a layer must have in its `params`.

    Raises:
        SettingsError: It is missing, not an integer, or less than 1.
    """
    value = layer.param(name)
    if value is None:
        raise SettingsError(
            f"{layer.spec} of {layer.name} needs the parameter {name!r}: the model's description "
            f'must give KVLayer(..., params=(("{name}", SIZE),))'
        )
    check_positive(layer.name, **{name: value})
    return int(value)
