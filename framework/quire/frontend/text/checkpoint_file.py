"""Reading of a checkpoint's small JSON files, with errors that name the file."""

import json
from pathlib import Path
from typing import Any

from quire.compose.checkpoint import small_file_text
from quire.errors import CheckpointCorruptError


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if there is no such file.

    Args:
        path: Path of a file in the checkpoint's folder; a GGUF file counts as a folder.

    Raises:
        CheckpointCorruptError: The file is not a JSON object.
    """
    try:
        text = small_file_text(path.parent, path.name)
        content = {} if text is None else json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointCorruptError(
            f"{path} cannot be read as JSON ({error}); download the checkpoint again"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointCorruptError(
            f"{path} must contain a JSON object, got a {type(content).__name__}"
        )
    return content
