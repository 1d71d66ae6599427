"""Key files that are read again when they change, so that keys are replaced without a restart.

Replace a file by renaming another one over it: then no half of it is read.
"""

import logging
import os
from collections.abc import Callable

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.keys.key_ring import KeyRing

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


class KeyFiles:
    """The keys of the settings, and the state of the files that they were read from.

    Args:
        settings: Settings with the keys and the names of the files.
    """

    def __init__(self, settings: ServerSettings) -> None:
        files = (settings.api_key_file, settings.admin_key_file)
        self.paths = [path for path in files if path is not None]
        self._settings = settings
        self._stamps: list[Stamp | None] = []

    def read(self) -> KeyRing:
        """Return all keys.

        Raises:
            SettingsError: A file or a key is invalid.
        """
        self._stamps = [_stamp(path) for path in self.paths]
        return KeyRing.load(self._settings)

    def read_changed(self, check: Callable[[KeyRing], None]) -> KeyRing | None:
        """Return all keys if a file has changed; None if none has, or if one is invalid now.

        Args:
            check: Function that raises SettingsError for keys that the server cannot use.
        """
        if [_stamp(path) for path in self.paths] == self._stamps:
            return None
        try:
            ring = self.read()
            check(ring)
        except SettingsError as error:
            logger.error("the keys stay as they were, because %s", error)
            return None
        names = ", ".join(key.name for key in (*ring.api, *ring.admin))
        logger.info("the key files have changed, and the keys are now: %s", names)
        return ring


def _stamp(path: str) -> Stamp | None:
    """Return what differs between two versions of a file; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
