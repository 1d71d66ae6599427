"""Python modules that a checkpoint brings: those that its config.json names, and what they import.

The modules are parsed, and not run.
"""

import ast
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

OTHER_MODEL = "--"  # between the id of another model on the hub and the class


def fetch_code(folder: Path, fetch: Callable[[Sequence[str]], object]) -> None:
    """Fetch the modules that a model's config.json names, and those that they import relatively.

    Code of other models, `owner/name--module.Class`, is left out.

    Args:
        folder: Folder with the model's config.json, where the modules are put.
        fetch: Function that puts the files of the given names into the folder.
    """
    known: set[str] = set()
    wanted = set(_named_modules(folder / "config.json"))
    while wanted:
        fetch(sorted(wanted))
        known |= wanted
        imported = {name for file in wanted for name in imported_modules(folder / file)}
        wanted = imported - known


def imported_modules(path: Path) -> list[str]:
    """Return the files of the modules that a module imports from its own folder.

    Those of a module that is not Python are none; its import reports the error.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            names += [node.module] if node.module else [alias.name for alias in node.names]
    return [f"{name}.py" for name in names if name.isidentifier()]


def _named_modules(config_file: Path) -> Iterator[str]:
    """Yield the files of the modules in the config's `auto_map`, `{class: "module.Class"}`."""
    try:
        named: Any = json.loads(config_file.read_text("utf-8")).get("auto_map")
    except (OSError, ValueError, AttributeError, RecursionError):
        return  # reported when the config is read
    for reference in named.values() if isinstance(named, dict) else ():
        if isinstance(reference, str) and OTHER_MODEL not in reference:
            module = reference.rpartition(".")[0]
            if module.isidentifier():
                yield f"{module}.py"
