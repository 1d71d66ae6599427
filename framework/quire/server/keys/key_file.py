"""Files of keys: one key per line, or YAML with names and limits.

    keys:
      - name: acme
        key: sk-...
        requests-per-minute: 60

No error shows a line of the file, because it may be a key.
"""

import logging
from pathlib import Path
from typing import Any

import msgspec

from quire.errors import SettingsError
from quire.plugins.registry import did_you_mean
from quire.server.keys.api_key import NO_LIMITS, KeyLimits

MAX_FILE_BYTES = 2**20
YAML_HEAD = "keys:"  # first line of a file in YAML
_FOR_OTHERS = 0o077

logger = logging.getLogger(__name__)


class KeyEntry(msgspec.Struct, frozen=True):
    """A key as it is written in a file; one without a name is named by the reader."""

    key: str
    name: str | None = None
    limits: KeyLimits = NO_LIMITS

    def __repr__(self) -> str:
        return f"KeyEntry(name={self.name!r})"


def read_key_file(path: Path) -> list[KeyEntry]:
    """Return the keys of a file, of which there is at least one.

    Raises:
        SettingsError: The file cannot be read, has no keys, or is invalid.
    """
    try:
        size, mode = path.stat().st_size, path.stat().st_mode
        if size > MAX_FILE_BYTES:
            raise SettingsError(f"the key file {path} is larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"the key file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the key file {path} is not UTF-8") from None
    if mode & _FOR_OTHERS:
        logger.warning("the key file %s can be read by other users: run chmod 600 on it", path)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise SettingsError(f"the key file {path} has no keys")
    if lines[0] == YAML_HEAD:
        return _read_yaml(path, text)
    return [KeyEntry(line) for line in lines]


def _read_yaml(path: Path, text: str) -> list[KeyEntry]:
    import yaml  # only for a file in YAML

    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        where = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"the key file {path} is not YAML{where}") from None
    except yaml.YAMLError:
        raise SettingsError(f"the key file {path} is not YAML") from None
    entries = content["keys"]
    if set(content) != {"keys"} or not isinstance(entries, list) or not entries:
        raise SettingsError(f"the key file {path} must have a list of keys, and nothing beside it")
    return [_entry(f"the key file {path}, entry {i}", e) for i, e in enumerate(entries, 1)]


def _entry(where: str, given: object) -> KeyEntry:
    """Return one entry of a list of keys.

    Raises:
        SettingsError: It is invalid.
    """
    if not isinstance(given, dict):
        raise SettingsError(f"{where}: it must have key, and may have name and limits")
    fields: dict[str, Any] = {str(key).replace("-", "_"): value for key, value in given.items()}
    known = ("name", "key", *KeyLimits.__struct_fields__)
    for name in fields:
        if name not in known:
            hint = did_you_mean(name, known)
            raise SettingsError(f"{where}: there is no field {name!r:.80}{hint}")
    key, name = fields.pop("key", None), fields.pop("name", None)
    if not isinstance(key, str) or not isinstance(name, str | None):
        raise SettingsError(f"{where}: key and name must be text; put numbers in quotes")
    try:
        return KeyEntry(key, name, msgspec.convert(fields, KeyLimits))
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where}: {error}") from None
