"""Keys are replaced while the server runs, and a wrong file changes nothing."""

import asyncio
import logging
import os

import pytest

from quire.config import ServerSettings
from quire.server.keys.accounts import Accounts
from quire.server.keys.key_files import KeyFiles


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("sk-canary-1\n")
    path.chmod(0o600)
    return path


def replace(file, text):
    new = file.with_suffix(".new")
    new.write_text(text)
    new.chmod(0o600)
    os.replace(new, file)


def accept(ring):
    """Check nothing."""


def test_a_file_is_read_again_once_it_has_changed(file, caplog):
    caplog.set_level(logging.INFO)
    files = KeyFiles(ServerSettings(api_key_file=str(file)))
    assert files.read().find(b"sk-canary-1") is not None
    assert files.read_changed(accept) is None
    replace(file, "sk-canary-2\nsk-canary-3\n")
    ring = files.read_changed(accept)
    names = [ring.find(text).name for text in (b"sk-canary-2", b"sk-canary-3")]
    assert ring.find(b"sk-canary-1") is None
    assert files.read_changed(accept) is None
    assert f"the keys are now: {', '.join(names)}" in caplog.text
    assert "canary" not in caplog.text


def test_a_key_of_the_same_length_is_another_key(file):
    files = KeyFiles(ServerSettings(api_key_file=str(file)))
    files.read()
    replace(file, file.read_text().replace("1", "9"))
    assert files.read_changed(accept).find(b"sk-canary-9") is not None


@pytest.mark.parametrize("text", ["", "keys:\n- sk-canary", None])
def test_a_file_that_is_wrong_or_gone_is_named_once_and_changes_nothing(file, caplog, text):
    files = KeyFiles(ServerSettings(api_key_file=str(file)))
    files.read()
    if text is None:
        file.unlink()
    else:
        replace(file, text)
    assert files.read_changed(accept) is None
    assert files.read_changed(accept) is None
    (message,) = caplog.messages
    assert message.startswith("the keys stay as they were, because the key file ")
    assert "canary" not in message
    replace(file, "sk-canary-4")
    assert files.read_changed(accept).find(b"sk-canary-4") is not None


def test_the_accounts_follow_their_files(file):
    async def follow():
        accounts = Accounts.load(ServerSettings(api_key_file=str(file)))
        following = asyncio.create_task(accounts.follow_files(poll_s=0.01))
        replace(file, "sk-canary-1\nsk-canary-2\n")
        async with asyncio.timeout(20):
            while len(accounts.of_keys()) < 2:
                await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(follow())


def test_a_changed_file_with_a_priority_that_nothing_reads_changes_nothing(file, caplog):
    async def follow():
        accounts = Accounts.load(ServerSettings(api_key_file=str(file)))
        accounts.check(has_priorities=False)
        before = accounts.of_keys()
        following = asyncio.create_task(accounts.follow_files(poll_s=0.01))
        replace(file, "keys:\n- {name: a, key: sk-canary-1, priority: 5}\n")
        async with asyncio.timeout(20):
            while not caplog.messages:
                await asyncio.sleep(0.01)
        assert accounts.of_keys() == before
        replace(file, "keys:\n- {name: a, key: sk-canary-1, priority: 0}\n")
        async with asyncio.timeout(20):
            while accounts.of_keys() == before:
                await asyncio.sleep(0.01)
        following.cancel()

    asyncio.run(follow())
    (message,) = caplog.messages
    assert message.startswith("the keys stay as they were, because the key 'a' has a priority")


def test_without_files_there_is_nothing_to_follow():
    asyncio.run(asyncio.wait_for(Accounts.load(ServerSettings()).follow_files(), 5))
