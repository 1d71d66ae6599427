"""The small JSON files beside a checkpoint are read here, so a broken one is always named."""

import json
from pathlib import Path
from typing import Any

from quire.errors import CheckpointCorruptError


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file.

    Raises:
        CheckpointCorruptError: The file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointCorruptError(
            f"{path} cannot be read as JSON ({error}); fetch the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointCorruptError(
            f"{path} must hold a JSON object, it holds a {type(content).__name__}"
        )
    return content
