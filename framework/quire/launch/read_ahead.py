"""Read-ahead of weights: the operating system reads the files while the parts are chosen."""

import contextlib
import os
import sys
import threading
from pathlib import Path

from quire.errors import QuireError
from quire.machine.free_memory import free_host_bytes
from quire.worker.loading.checkpoint_files import find_weight_files

CHUNK_BYTES = 256 * 2**10  # Linux reads at most one I/O request of a device ahead for each call


def read_ahead(folder: Path) -> threading.Thread:
    """Start to read the weight files of a checkpoint into the page cache, if they fit.

    Files that cannot be read are left to the loader, which reports them. On systems other than
    Linux nothing is read.
    """
    thread = threading.Thread(target=_read, args=(folder,), name="read ahead", daemon=True)
    thread.start()
    return thread


def _read(folder: Path) -> None:
    with contextlib.suppress(QuireError, OSError):
        files = find_weight_files(folder)
        num_bytes = sum(file.stat().st_size for file in files)
        if sys.platform == "linux" and num_bytes < free_host_bytes():
            for file in files:
                _read_file(file)


def _read_file(file: Path) -> None:
    with file.open("rb") as stream:
        for start in range(0, file.stat().st_size, CHUNK_BYTES):
            os.posix_fadvise(stream.fileno(), start, CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
