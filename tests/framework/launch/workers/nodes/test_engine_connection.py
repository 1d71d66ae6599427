"""Connection of an agent: a key that is refused is read again, as long as another may come."""

import os
import re
import threading
import time

import pytest
from joining_agents import free_port
from left_keys import key_left_in
from processes import eventually

from quire.errors import QuireError, SettingsError
from quire.launch.workers.nodes.agent_wire import FromAgent, ToAgent
from quire.launch.workers.nodes.engine_connection import connect
from quire.process import launch_key
from quire.process.launch_key import LaunchKey
from quire.process.network.network_hub import NetworkHub
from quire.process.start_key import StartKey


class Scene:
    """An engine's port, the file of its key, and an agent that connects in a thread."""

    def __init__(self, folder):
        self.file = folder / "key"
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.own_ip = self.key = self.error = None
        self._opened = []

    def start(self):
        """Start an engine, which writes its key and listens."""
        start = StartKey(self.file)
        self._opened += [start.remove, NetworkHub(FromAgent, self.address, start.key).close]
        return start.key

    def listen(self):
        """Start an engine that has another key than the file."""
        self._opened.append(NetworkHub(FromAgent, self.address, LaunchKey.new()).close)

    def connect(self, timeout_s):
        self.thread = threading.Thread(target=self._connect, args=[timeout_s])
        self.thread.start()

    def ends(self):
        self.thread.join(30)
        assert not self.thread.is_alive()

    def close(self):
        for close in self._opened:
            close()

    def _connect(self, timeout_s):
        try:
            made = connect(ToAgent, self.address, str(self.file), timeout_s)
        except QuireError as error:
            self.error = error
            return
        self.key, self.own_ip = made.key, made.own_ip
        made.channel.close()


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.close()


def is_refused(caplog):
    return "the engine refuses the key" in caplog.text


def test_an_agent_waits_for_the_key_and_the_engine(scene):
    scene.connect(30)
    time.sleep(0.3)
    key = scene.start()
    scene.ends()
    assert (scene.key, scene.own_ip) == (key, "127.0.0.1")


def test_the_key_of_a_killed_engine_is_replaced_by_that_of_the_next_one(scene):
    left = key_left_in(scene.file)
    scene.connect(30)
    time.sleep(0.7)  # it has read the file, and waits for the engine
    key = scene.start()
    scene.ends()
    assert scene.key == key
    assert key.text != left


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_agent_with_a_stale_key_waits_until_another_one_is_written(scene, caplog, is_gone):
    key_left_in(scene.file)
    scene.listen()
    scene.connect(30)
    eventually(lambda: is_refused(caplog))
    if is_gone:
        scene.file.unlink()
    time.sleep(0.7)
    assert scene.thread.is_alive()
    scene.close()
    scene._opened.clear()
    key = scene.start()
    scene.ends()
    assert scene.key == key


def test_a_stale_key_is_an_error_at_the_time_limit(scene):
    key_left_in(scene.file)
    scene.listen()
    began = time.monotonic()
    scene.connect(1.2)
    scene.ends()
    assert time.monotonic() - began >= 1.2
    assert isinstance(scene.error, SettingsError)
    assert "has another launch key" in str(scene.error)


def test_a_key_that_the_user_has_made_is_refused_at_once(scene):
    LaunchKey.new().write(scene.file)
    scene.listen()
    scene.connect(600)
    scene.ends()
    assert "has another launch key" in str(scene.error)


def test_a_key_of_the_standard_input_is_refused_at_once(scene, monkeypatch):
    readable, writable = os.pipe()
    monkeypatch.setattr(launch_key, "_INPUT_FD", readable)
    os.write(writable, LaunchKey.new().text.encode() + b"\n")
    scene.listen()
    scene.file = "-"
    scene.connect(600)
    scene.ends()
    assert "has another launch key" in str(scene.error)
    for fd in (readable, writable):
        os.close(fd)


def test_the_time_limit_is_that_of_key_and_engine_together(scene):
    scene.connect(0.9)
    time.sleep(0.5)
    LaunchKey.new().write(scene.file)
    scene.ends()
    (left_s,) = re.findall(r"cannot be reached within (\S+) s", str(scene.error))
    assert float(left_s) <= 0.4


def test_a_key_that_the_user_has_replaced_is_tried(scene):
    LaunchKey.new().write(scene.file)
    scene.connect(30)
    time.sleep(0.7)
    scene.file.unlink()
    LaunchKey.new().write(scene.file)
    key = scene.start()
    scene.ends()
    assert scene.key == key
