"""Read-ahead of weights: the operating system reads the files while the parts are chosen."""

import os
import sys
import threading
from pathlib import Path

from quire.compose.checkpoint import WEIGHT_FILES
from quire.machine.free_memory import free_host_bytes


def read_ahead(folder: Path) -> threading.Thread:
    """Start to read the weight files of a checkpoint into the page cache, if they fit.

    Files that cannot be read are left to the loader, which reports them. On systems other than
    Linux nothing is read.
    """
    thread = threading.Thread(target=_read, args=(folder,), name="read ahead", daemon=True)
    thread.start()
    return thread


def _read(folder: Path) -> None:
    files = [file for pattern in WEIGHT_FILES for file in folder.glob(pattern) if file.is_file()]
    num_bytes = sum(file.stat().st_size for file in files)
    if sys.platform != "linux" or num_bytes >= free_host_bytes():
        return
    for file in sorted(files):
        if os.access(file, os.R_OK):
            with file.open("rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
