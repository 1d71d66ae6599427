"""What the processes of a server have open takes random bytes and pickles without harm.

Another user of the machine can reach listening sockets and files only. Pipes can be opened by the
own user, in /proc; sockets between processes have no name, and their garbage is tested where they
are (`process`, `launch/engine_process`).
"""

import os
import pickle
import random
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

LISTENING = 0x10000  # of the flags of a Unix socket, __SO_ACCEPTCON
GREEDY = {"prompt": "Once", "max_tokens": 8, "temperature": 0}


class Canary:
    """An object whose unpickling writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.fixture(scope="module")
def server():
    """Serve the demo with an engine process and grammar processes; returns process and URL."""
    command = [sys.executable, "-m", "quire.cli", "serve", "demo", "--port", "0"]
    command += ["--engine-process", "--max-num-seqs", "4"]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        url = started.stdout.readline().split()[-1]
        for _ in range(2):
            httpx.post(
                f"{url}/v1/completions",
                json=GREEDY | {"structured_outputs": {"regex": "[a-z]{3}"}},
                timeout=60,
            ).raise_for_status()
        yield psutil.Process(started.pid), url
    finally:
        started.kill()
        started.communicate()


def tree(process):
    return [process, *process.children(recursive=True)]


def open_files(process, kind):
    """Return the descriptors of a process whose target begins with a word, and the targets."""
    found = {}
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        target = os.readlink(entry)
        if target.startswith(kind):
            found[int(entry.name)] = target
    return found


def complete(url):
    response = httpx.post(f"{url}/v1/completions", json=GREEDY, timeout=60)
    assert response.status_code == 200
    return response.json()["choices"][0]["text"]


def test_all_processes_are_there(server):
    process, _ = server
    assert len(tree(process)) >= 4  # server, engine, its watchdog, grammar fork server


def test_one_address_listens_and_no_socket_has_a_name(server):
    process, url = server
    inodes, listening = set(), []
    for each in tree(process):
        inodes |= {name[8:-1] for name in open_files(each, "socket:[").values()}
        listening += [c.laddr for c in each.net_connections("inet") if c.status == "LISTEN"]
    assert {(a.ip, a.port) for a in listening} == {("127.0.0.1", int(url.rpartition(":")[2]))}
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    own = [row for row in rows if row[6] in inodes]
    assert own, "processes are connected by sockets"
    assert [row for row in own if int(row[3], 16) & LISTENING] == []
    paths = [Path(row[7]) for row in own if len(row) > 7 and not row[7].startswith("@")]
    assert [path for path in paths if path.exists()] == []


def test_what_lies_in_shared_memory_is_for_its_owner_only(server):
    process, _ = server
    for each in tree(process):
        for descriptor in open_files(each, "/dev/shm/"):
            mode = os.stat(f"/proc/{each.pid}/fd/{descriptor}").st_mode
            assert not stat.S_IMODE(mode) & 0o077


def test_random_bytes_and_pickles_in_any_pipe_do_no_harm(server, tmp_path):
    process, url = server
    before, pids = complete(url), {each.pid for each in tree(process)}
    rng, canary = random.Random(2), tmp_path / "canary"
    attacks = [pickle.dumps(Canary(canary)), *(rng.randbytes(n) for n in (1, 8, 3000))]
    num_written = 0
    for each in tree(process):
        for descriptor in open_files(each, "pipe:["):
            if descriptor in (1, 2):
                continue  # they are the test's own
            num_written += write(f"/proc/{each.pid}/fd/{descriptor}", attacks)
    assert complete(url) == before
    assert httpx.get(f"{url}/readyz", timeout=30).status_code == 200
    assert {each.pid for each in tree(process)} >= pids
    assert not canary.exists()
    assert num_written > 0, "the engine's process was started with a pipe"


def write(path, messages):
    """Write into a pipe, if it can be opened for that; return the number of messages."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return 0
    try:
        for number, message in enumerate(messages):
            try:
                os.write(pipe, message)
            except OSError:
                return number
    finally:
        os.close(pipe)
    return len(messages)
