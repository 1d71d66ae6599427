"""Parsing of byte sizes with units."""

import pytest

from quire.errors import SettingsError
from quire.machine.byte_size import parse_byte_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("1048576", 2**20), (" 7 ", 7), ("7B", 7), ("7 B", 7),
        ("3kB", 3000), ("3KB", 3000), ("3 MB", 3 * 10**6), ("3GB", 3 * 10**9), ("3TB", 3 * 10**12),
        ("3KiB", 3 * 2**10), ("3MiB", 3 * 2**20), ("3 GiB", 3 * 2**30), ("3TiB", 3 * 2**40),
        ("9" * 18, 10**18 - 1),
    ],
)  # fmt: skip
def test_digits_and_a_unit_are_a_size(text, size):
    assert parse_byte_size(text, "size") == size


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1", "1.5GB", "4 GiB more", "4gib", "4Gb", "1 2", "4  GB", "9" * 19, "٣"]
)
def test_anything_else_is_refused_with_the_units(text):
    with pytest.raises(SettingsError, match=r"size must be .* \(units: B, kB, .*TiB\), got"):
        parse_byte_size(text, "size")
