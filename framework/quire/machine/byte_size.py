"""Parsing of byte sizes with units: `1048576`, `4GiB`, `500 MB`."""

import re

from quire.errors import SettingsError

UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,18}) ?([A-Za-z]*)")


def parse_byte_size(text: str, name: str) -> int:
    """Return the number of bytes of a text.

    Args:
        text: Digits, optionally with a unit.
        name: Name of the option, for the error.

    Raises:
        SettingsError: The text is not a number of bytes.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = UNITS.get(match[2]) if match else None
    if match is None or unit is None:
        raise SettingsError(
            f"{name} must be a number of bytes, such as 1048576 or 4GiB (units: "
            f"{', '.join(filter(None, UNITS))}), got {text!r}"
        )
    return int(match[1]) * unit
