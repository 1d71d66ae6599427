"""Reading of a checkpoint's small JSON files, with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from quire.errors import CheckpointCorruptError


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file.

    Raises:
        CheckpointCorruptError: The file is not a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointCorruptError(
            f"{path} cannot be read as JSON ({error}); download the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointCorruptError(
            f"{path} must contain a JSON object, got a {type(content).__name__}"
        )
    return content
