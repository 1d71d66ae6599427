"""What `--tool-server` names: a URL, or a command that is run without a shell."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from quire.config import ServerSettings
from quire.errors import SettingsError

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_INHERITED = (
    "HOME", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ToolServerAddress:
    """Where a tool server is; either `url` or `command` is set.

    Attributes:
        label: Name that requests use; None: the one that the server gives itself.
        url: URL of the streamable HTTP transport.
        command: Program and arguments of a server that speaks on its standard input and output.
        environment: Environment of the command.
        token: Bearer token of the URL.
    """

    label: str | None
    url: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """Name for messages, without anything that may be a secret."""
        if self.label is not None:
            return repr(self.label)
        if self.url is not None:
            return f"at {urlsplit(self.url).hostname}"
        return f"with the command {os.path.basename(self.command[0])!r}"


def addresses_of(settings: ServerSettings) -> list[ToolServerAddress]:
    """Return the addresses of all tool servers that the settings list.

    Raises:
        SettingsError: One of them is invalid, or names what another one has, or a file of a token
            cannot be read.
    """
    environment = _environment(settings.tool_server_env)
    found = [_address(text, environment) for text in settings.tool_server]
    labels = [address.label for address in found if address.label is not None]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise SettingsError(f"tool_server: the name {twice!r} is given twice")
    tokens = {name: _token(Path(path)) for name, path in settings.tool_server_token_files.items()}
    return _with_tokens(found, tokens)


def _address(text: str, environment: Mapping[str, str]) -> ToolServerAddress:
    before, equals, after = text.partition("=")
    label = before if equals and _LABEL.fullmatch(before) else None
    if label is None and _is_like_name(before) and _URL.match(after) and len(after.split()) == 1:
        raise SettingsError(
            f"tool_server: {before!r:.80} is no name of a server, which has letters, digits, - "
            "and _; for a command that takes this text, write NAME=COMMAND"
        )
    target = (text if label is None else after).strip()
    name = "a server" if label is None else repr(label)
    if _URL.match(target):
        _check_url(target, name)
        return ToolServerAddress(label, url=target)
    try:
        command = tuple(shlex.split(target))
    except ValueError as error:
        raise SettingsError(f"tool_server: the command of {name} is invalid: {error}") from None
    if not command:
        raise SettingsError(
            f"tool_server: {name} has neither a URL nor a command; write NAME=URL_OR_COMMAND"
        )
    return ToolServerAddress(label, command=command, environment=environment)


def _is_like_name(text: str) -> bool:
    """Whether a text before a URL is no path, option or quoted text of a command."""
    return not any(word[0] == "-" or {*word} & {*"/\\'\""} for word in text.split())


def _check_url(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # raises if the port is none
    except ValueError:  # whose text may have credentials
        raise SettingsError(f"tool_server: the URL of {name} has no valid host and port") from None
    if parts.scheme not in ("http", "https"):
        raise SettingsError(
            f"tool_server: the URL of {name} must be one of http or https, such as "
            "http://127.0.0.1:8000/mcp"
        )
    if not host:
        raise SettingsError(
            f"tool_server: the URL of {name} has no host; write one such as "
            "http://127.0.0.1:8000/mcp"
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"tool_server: the URL of {name} has credentials; write a token to a file, and name it "
            "by tool_server_token_file"
        )


def _environment(names: Sequence[str]) -> dict[str, str]:
    """Return the environment of commands: no option of quire is in it unless it is named."""
    for name in names:
        if name not in os.environ:
            raise SettingsError(f"tool_server_env: the environment has no variable {name!r}")
    return {name: os.environ[name] for name in (*_INHERITED, *names) if name in os.environ}


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise SettingsError(f"tool_server_token_file: {path} cannot be read: {reason}") from None
    if not token or not token.isprintable():
        raise SettingsError(f"tool_server_token_file: {path} must have one line with a token")
    return token


def _with_tokens(
    addresses: Sequence[ToolServerAddress], tokens: Mapping[str, str]
) -> list[ToolServerAddress]:
    urls = {address.label: address.url for address in addresses if address.url is not None}
    for name in tokens:
        if name not in urls:
            raise SettingsError(
                f"tool_server_token_file: no tool server with a URL has the name {name!r}"
            )
    return [
        ToolServerAddress(a.label, a.url, a.command, a.environment, tokens.get(a.label or ""))
        for a in addresses
    ]
