"""Secret of one launch, from which the engine and its workers on other machines derive their keys.

It travels by a file that only its owner may read, or by standard input, and never by a command
line or the environment, which other processes can read.
"""

import os
import re
import secrets
import select
import stat
import time
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Self

import zmq
from zmq.utils import z85

from quire.errors import SettingsError

SECRET_BYTES = 32
STANDARD_INPUT = "-"
ONE_START = "\n# written for one start by "  # then the engine that has written the file
_INPUT_FD = 0
_MAX_TEXT_BYTES = 1000  # of a file or of standard input; a key has 65
_RETRY_S = 0.2
_TEXT = re.compile(f"[0-9a-fA-F]{{{2 * SECRET_BYTES}}}")


@dataclass(frozen=True)
class CurveKeys:
    """A pair of CURVE keys, as z85 text.

    Attributes:
        public: Key that the other end knows.
        secret: Key that only this end has.
    """

    public: bytes
    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class LaunchKey:
    """Secret of one launch.

    Args:
        secret: 32 random bytes.

    Raises:
        SettingsError: The secret has another length.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise SettingsError(f"a launch key has {SECRET_BYTES} bytes, not {len(self.secret)}")

    @classmethod
    def new(cls) -> Self:
        """Return a key that no other launch has."""
        return cls(secrets.token_bytes(SECRET_BYTES))

    @classmethod
    def from_text(cls, text: str, source: str = "the text") -> Self:
        """Return the key that a text of 64 hexadecimal digits stands for.

        Args:
            text: The digits, with or without space around them.
            source: Origin of the text, for the error.

        Raises:
            SettingsError: The text is something else; the error does not repeat it.
        """
        if not _TEXT.fullmatch(text.strip()):
            raise SettingsError(
                f"{source} is no launch key, which is {2 * SECRET_BYTES} hexadecimal digits; it "
                f"has {len(text.strip())} characters"
            )
        return cls(bytes.fromhex(text.strip()))

    @classmethod
    def read(cls, path: str | Path, timeout_s: float) -> Self:
        """Read the key from a file, or from standard input if the path is `-`.

        Args:
            path: File, which only its owner may access.
            timeout_s: Time to wait for a file that does not exist or is empty, or for the input.

        Raises:
            SettingsError: There is no key in time, others may read or replace it, or it is invalid.
        """
        if str(path) == STANDARD_INPUT:
            return cls.from_text(_read_input(timeout_s), "the standard input")
        text = _read_file(Path(path), timeout_s)
        return cls.from_text(text.partition(ONE_START)[0], f"the content of {path}")

    def write(self, path: str | Path) -> None:
        """Write the key to a new file that only this user may access.

        Args:
            path: File; a link is not followed.

        Raises:
            SettingsError: The file exists, or cannot be written.
        """
        if str(path) == STANDARD_INPUT:
            raise SettingsError("a launch key cannot be written to standard input; name a file")
        try:
            with new_private_file(path) as file:
                file.write(f"{self.text}\n".encode())
        except OSError as error:
            raise SettingsError(f"the launch key cannot be written to {path}: {error}") from error

    @property
    def text(self) -> str:
        """The key as 64 hexadecimal digits."""
        return self.secret.hex()

    @cached_property
    def listener(self) -> CurveKeys:
        """Keys of the end that listens."""
        return self._derived(b"quire listener")

    @cached_property
    def joiner(self) -> CurveKeys:
        """Keys of the ends that connect, the same for all."""
        return self._derived(b"quire joiner")

    def _derived(self, person: bytes) -> CurveKeys:
        """Derive a pair of keys from the secret, another one for each `person`."""
        digest = blake2b(self.secret, digest_size=32, person=person).digest()
        secret = z85.encode(digest)
        return CurveKeys(zmq.curve_public(secret), secret)


def new_private_file(path: str | Path) -> FileIO:
    """Make a file that only this user may access; a link is not followed.

    Raises:
        OSError: It exists, or cannot be written.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, 0o600)  # whatever the umask is
    return FileIO(fd, "w")


def present_text(path: Path) -> str | None:
    """Return the content of a file of a key; None if it does not exist.

    Raises:
        SettingsError: The file cannot be read, or others may read or replace its content.
    """
    try:
        with open(path, "rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            return _text(file.read(_MAX_TEXT_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"the launch key in {path} cannot be read: {error}") from error


def no_text(path: Path) -> SettingsError:
    """Return the error about a file that is empty."""
    return SettingsError(
        f"{path} is empty, and no launch key; remove it, so that the engine writes one when it "
        "starts, or write one with `quire worker --new-key FILE`"
    )


def _read_input(timeout_s: float) -> str:
    """Return the first line of the standard input, which may stay open."""
    deadline = time.monotonic() + timeout_s
    data, chunk = b"", b"-"
    while chunk and b"\n" not in data and len(data) < _MAX_TEXT_BYTES:
        left_s = max(0.0, deadline - time.monotonic())
        try:
            if not select.select([_INPUT_FD], [], [], left_s)[0]:
                raise SettingsError(
                    f"no launch key came on the standard input within {timeout_s:g} s"
                )
            chunk = os.read(_INPUT_FD, _MAX_TEXT_BYTES)
        except OSError as error:
            raise SettingsError(
                f"the launch key cannot be read from the standard input: {error}"
            ) from error
        data += chunk
    return _text(data.partition(b"\n")[0])


def _read_file(path: Path, timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while not (text := present_text(path)):
        if time.monotonic() >= deadline:
            raise no_text(path) if text is not None else _absent(path, timeout_s)
        time.sleep(_RETRY_S)
    return text


def _absent(path: Path, timeout_s: float) -> SettingsError:
    return SettingsError(
        f"there is no launch key in {path} after {timeout_s:g} s; the engine writes it when it "
        "starts, so the file must be in a folder that both machines see"
    )


def _check_private(path: Path, status: os.stat_result) -> None:
    """Refuse a file that others may access.

    A group may read a file of root that is not this user's: so orchestrators hand out secrets.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise SettingsError(
            f"the launch key in {path} belongs to user {status.st_uid}, who can replace it; use a "
            "file of your own"
        )
    is_own = status.st_uid == os.geteuid()
    forbidden = 0o077 if is_own else 0o037
    if stat.S_IMODE(status.st_mode) & forbidden:
        raise SettingsError(
            f"others may access the launch key in {path} (mode {stat.S_IMODE(status.st_mode):o}); "
            "make it private with `chmod 600`, and use a new key if they may have read it"
        )


def _text(data: bytes) -> str:
    return data.decode("ascii", "replace").strip()
