"""What `--tool-server` names: URLs and commands, and what is refused before a server starts."""

import pytest

from quire.config import ServerSettings
from quire.errors import SettingsError
from quire.server.tool_servers.tool_server_address import addresses_of


def addresses(*servers, **settings):
    return addresses_of(ServerSettings(tool_server=servers, **settings))


@pytest.mark.parametrize(
    ("text", "label", "url", "command"),
    [
        ("http://127.0.0.1:9/mcp", None, "http://127.0.0.1:9/mcp", ()),
        ("files=https://a.example/mcp?x=1", "files", "https://a.example/mcp?x=1", ()),
        ("https://a.example/mcp?x=1", None, "https://a.example/mcp?x=1", ()),
        ("files=npx -y 'a b' --root=/tmp", "files", None, ("npx", "-y", "a b", "--root=/tmp")),
        ("./server --root=/tmp", None, None, ("./server", "--root=/tmp")),
        ("run --url=http://a/", None, None, ("run", "--url=http://a/")),
        ("./run url=http://a/", None, None, ("./run", "url=http://a/")),
        ("me=run url=http://a/", "me", None, ("run", "url=http://a/")),
        ("env URL=http://a/ run", None, None, ("env", "URL=http://a/", "run")),
        ("a-b_1 = run; rm $HOME", None, None, ("a-b_1", "=", "run;", "rm", "$HOME")),
    ],
)
def test_an_address_is_a_url_or_a_command_perhaps_with_a_name(text, label, url, command):
    (found,) = addresses(text)
    assert (found.label, found.url, found.command) == (label, url, command)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        (["files="], "neither a URL nor a command"),
        (["files='a"], "No closing quotation"),
        (["files=ftp://a.example/"], "one of http or https"),
        (["http://"], "the URL of a server has no host"),
        (["files=https:///mcp"], "the URL of 'files' has no host"),
        (["http://a.example:port/"], "no valid host and port"),
        (["w e=http://a.example/"], "'w e' is no name of a server"),
        (["we =http://a.example/"], "'we ' is no name of a server"),
        (["w.e=http://a.example/"], "'w.e' is no name of a server"),
        (["a=http://user:secret@a.example/"], "has credentials; write a token to a file"),
        (["a=x", "a=y"], "'a' is given twice"),
    ],
)
def test_what_is_invalid_is_said_by_name(servers, message):
    with pytest.raises(SettingsError, match=message):
        addresses(*servers)


def test_a_command_gets_a_small_environment_and_what_is_named(monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-2")
    monkeypatch.setenv("WEATHER_TOKEN", "w")
    (found,) = addresses("run", tool_server_env=("WEATHER_TOKEN",))
    assert found.environment["WEATHER_TOKEN"] == "w"
    assert not {"QUIRE_API_KEY", "OPENAI_API_KEY"} & {*found.environment}
    assert "PATH" in found.environment


def test_a_variable_that_does_not_exist_is_said_by_name():
    with pytest.raises(SettingsError, match="NO_SUCH_VARIABLE"):
        addresses("run", tool_server_env=("NO_SUCH_VARIABLE",))


def test_a_token_is_read_from_a_file_and_shown_nowhere(tmp_path):
    path = tmp_path / "token"
    path.write_text("secret-1\n")
    (found,) = addresses("files=http://a.example/mcp", tool_server_token_file=(f"files={path}",))
    assert found.token == "secret-1"
    assert "secret-1" not in repr(found) + found.shown


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("other={path}", "no tool server with a URL has the name 'other'"),
        ("files={path}x", "cannot be read: No such file"),
    ],
)
def test_a_token_that_cannot_be_used_is_an_error(tmp_path, given, message):
    path = tmp_path / "token"
    path.write_text("t")
    with pytest.raises(SettingsError, match=message):
        addresses("files=http://a/", tool_server_token_file=(given.format(path=path),))
