"""Words and wordings stand in TOML files beside the code; this reads them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def tables(name: str) -> dict[str, Any]:
    """The tables of one of the recipe's TOML files."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text("utf-8"))


@cache
def words(section: str, name: str) -> tuple[str, ...]:
    """A word list of `words.toml`, divided by bars where it has any and by blanks elsewhere."""
    line: str = tables("words")[section][name]
    return tuple(line.replace("\n", "").split("|") if "|" in line else line.split())
