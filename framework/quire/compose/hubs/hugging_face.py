"""Files of a model on the Hugging Face hub, in the hub's own cache.

The hub's client downloads a file from its beginning whenever it is started. Weight files are
large, so they are downloaded here: to a partial file that the next start continues, under a lock
that other processes wait for, and with a check of the content. All else is left to the client, and
so are files above the size that the hub serves by HTTP.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

from huggingface_hub import (
    HfApi,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers

from quire.errors import CheckpointNotFoundError

MAX_DOWNLOADS = 4
REPORT_PERIOD_S = 10.0
PARTIAL = ".quire-partial"
NESTED = "*/*"
WHOLE_CHECKPOINTS = ("model.safetensors", "consolidated.safetensors")
SHA256 = re.compile(r"[0-9a-f]{64}")  # the etag of a large file
MB = 1e6

logger = logging.getLogger(__name__)


class HuggingFaceModel:
    """One revision of a model on the hub.

    Args:
        name: Id of the model.
        revision: Branch, tag or commit; None: the main branch.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        self._name = name
        self._revision = revision
        self._commit: str | None = None

    def fetch(self, patterns: Sequence[str]) -> Path:
        """Return the snapshot's folder, with the files that match a pattern.

        Offline it is the folder of the cache, if that has all of these files.

        Raises:
            CheckpointNotFoundError: The hub refuses, the cache lacks files, or the disk is full.
            Exception: The hub's client failed otherwise.
        """
        with self._refusals():
            if self._commit is not None:
                self._fetch_large([name for name in patterns if "*" not in name])
                self._check_complete(patterns)
            folder = snapshot_download(
                self._name,
                revision=self._commit or self._revision,
                allow_patterns=list(patterns),
                ignore_patterns=[NESTED],
            )
        self._commit = Path(folder).name
        return Path(folder)

    def list_files(self) -> list[str]:
        """Return the names of all files; of those in the cache if they suffice, or offline."""
        cached = [path.name for path in self._folder().iterdir()]
        if constants.HF_HUB_OFFLINE or not {*cached}.isdisjoint(WHOLE_CHECKPOINTS):
            return cached
        return list(HfApi().list_repo_files(self._name, revision=self._commit))

    def _cache(self) -> Path:
        folder: str = repo_folder_name(repo_id=self._name, repo_type="model")
        return Path(constants.HF_HUB_CACHE) / folder

    def _folder(self) -> Path:
        return self._cache() / "snapshots" / str(self._commit)

    def _check_complete(self, patterns: Sequence[str]) -> None:
        folder = self._folder()
        missing = [n for n in patterns if "*" not in n and not (folder / n).is_file()]
        if missing:
            raise CheckpointNotFoundError(
                f"the cache lacks {', '.join(missing)}; start once without HF_HUB_OFFLINE"
                if constants.HF_HUB_OFFLINE
                else f"the hub has no {', '.join(missing)}, which you or another of its files named"
            )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Turn what the hub and the disk refuse to errors that say what to do."""
        try:
            yield
        except GatedRepoError as error:
            raise CheckpointNotFoundError(
                f"access to it is restricted: ask for it at {constants.ENDPOINT}/{self._name}, and "
                "set HF_TOKEN to a token of the account that has it"
            ) from error
        except RepositoryNotFoundError as error:
            raise CheckpointNotFoundError(
                "the hub has no such model, or it is private; check its name, and set HF_TOKEN to "
                "a token of an account that may read it"
            ) from error
        except RevisionNotFoundError as error:
            raise CheckpointNotFoundError(f"it has no revision {self._revision!r}") from error
        except LocalEntryNotFoundError as error:
            cache = constants.HF_HUB_CACHE
            if not constants.HF_HUB_OFFLINE:
                raise CheckpointNotFoundError(
                    f"asking {constants.ENDPOINT} failed{_root_cause(error)}, and the cache "
                    f"{cache} does not have it"
                ) from error
            raise CheckpointNotFoundError(
                f"the cache {cache} does not have it; start once without HF_HUB_OFFLINE"
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise CheckpointNotFoundError(
                f"no space is left in the cache {constants.HF_HUB_CACHE}; free some and start "
                "again, and the download continues, or set HF_HUB_CACHE to a folder on another disk"
            ) from error

    def _fetch_large(self, names: Sequence[str]) -> None:
        """Download the files that are not in the cache to it, unless offline."""
        if constants.HF_HUB_OFFLINE:
            return
        meter = DownloadMeter(self._name)
        with ThreadPoolExecutor(MAX_DOWNLOADS) as pool:
            for _ in pool.map(lambda name: self._fetch_file(name, meter), names):
                pass

    def _fetch_file(self, name: str, meter: "DownloadMeter") -> None:
        if (self._folder() / name).exists():
            return
        url = hf_hub_url(self._name, name, revision=self._commit)
        try:
            metadata = get_hf_file_metadata(url)
        except EntryNotFoundError:
            return  # reported with all others
        if metadata.etag is not None and metadata.size is not None and _is_by_http(metadata.size):
            meter.expect(metadata.size)
            blob = self._cache() / "blobs" / metadata.etag
            headers = _headers(url, metadata.location)
            download_file(metadata.location, blob, metadata.size, headers, meter)
        # Links the snapshot to it, or downloads what the hub does not serve by HTTP.
        hf_hub_download(self._name, name, revision=self._commit)


def _root_cause(error: BaseException) -> str:
    """Return the message of the error that began a chain, in brackets; "" if it has none."""
    first = error
    while (earlier := first.__cause__ or first.__context__) is not None:
        first = earlier
    message = " ".join(str(first).split())
    return f" ({type(first).__name__}: {message})" if first is not error else ""


def _is_by_http(size: int) -> bool:
    """Return whether the hub serves a file of this size by HTTP; its client has another way."""
    return size <= int(constants.MAX_HTTP_DOWNLOAD_SIZE)


class DownloadMeter:
    """Bytes of a download by several threads, logged from time to time.

    Args:
        name: Name of what is downloaded.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._total = self._done = 0
        self._started = self._reported = time.monotonic()

    def expect(self, num_bytes: int) -> None:
        """Add to the bytes in all."""
        with self._lock:
            self._total += num_bytes

    def add(self, num_bytes: int) -> None:
        """Add to the bytes that are there."""
        with self._lock:
            self._done += num_bytes
            now = time.monotonic()
            if now - self._reported >= REPORT_PERIOD_S:
                self._reported = now
                self._report(now - self._started)

    def _report(self, seconds: float) -> None:
        logger.info(
            "downloading %s: %.0f of %.0f MB after %.0f s",
            self._name,
            self._done / MB,
            self._total / MB,
            seconds,
        )


def download_file(
    url: str, target: Path, size: int, headers: dict[str, str], meter: DownloadMeter
) -> None:
    """Download a file, and continue an earlier download of it.

    Args:
        url: Address of the file.
        target: Path of the whole file; its name is the content's SHA-256 if it looks like one.
        size: Number of bytes.
        headers: Headers of the request.
        meter: Counts the bytes.

    Raises:
        OSError: The file's content is not what the hub announced.
    """
    partial = target.with_name(target.name + PARTIAL)
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("ab") as file:
        _lock(file, target.name)
        if target.exists():  # by the process that had the lock
            partial.unlink(missing_ok=True)
            meter.add(size)
            return
        done = file.seek(0, os.SEEK_END)
        if done > size:
            done = file.truncate(0)
        meter.add(done)
        if done:
            logger.info("continuing a download at %.0f of %.0f MB", done / MB, size / MB)
        counted: Any = _CountedFile(file, meter)
        http_get(url, counted, resume_size=done, headers=headers, expected_size=size)
        file.flush()
        _check_content(partial, target.name, file)
        partial.rename(target)


def _lock(file: BinaryIO, name: str) -> None:
    """Wait until no other process downloads the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.info("waiting for another process that downloads %s", name)
        fcntl.flock(file, fcntl.LOCK_EX)


def _check_content(partial: Path, name: str, writer: BinaryIO) -> None:
    """Check the content, and empty the file if it is wrong; other processes wait for its lock."""
    if not SHA256.fullmatch(name):
        return
    with partial.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != name:
        writer.truncate(0)
        raise OSError(f"the downloaded file has the SHA-256 {found}, but the hub has {name}; retry")


class _CountedFile:
    """A file whose written bytes are counted; the client shows its bar on a terminal only."""

    def __init__(self, file: BinaryIO, meter: DownloadMeter) -> None:
        self._file = file
        self._meter = meter
        self.seek, self.tell, self.truncate = file.seek, file.tell, file.truncate

    def write(self, data: bytes) -> int:
        self._meter.add(len(data))
        return self._file.write(data)


def _headers(url: str, location: str) -> dict[str, str]:
    """Return the headers of a request; the user's token is for the hub only."""
    headers: dict[str, str] = build_hf_headers()
    if urlparse(url).netloc != urlparse(location).netloc:
        headers.pop("authorization", None)
    return headers
