"""The unit names flags that exist, waits as long as an ending takes, and suits systemd."""

import re
import shutil
import subprocess
import sys

import pytest

from quire.cli.options import all_options
from quire.config import ServerSettings

EXIT_S = 2  # after the end of the grace period, as docs/reliability.md promises
NEEDS_SYSTEMD = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


@pytest.fixture(scope="module")
def unit(deploy):
    return deploy / "systemd" / "quire.service"


@pytest.fixture(scope="module")
def settings(unit):
    lines = [line for line in unit.read_text().splitlines() if re.match(r"\w+=", line)]
    found = {}
    for line in lines:
        name, _, value = line.partition("=")
        found.setdefault(name, []).append(value)
    return found


def test_flags_are_options(settings):
    (command,) = settings["ExecStart"]
    flags = set(re.findall(r"--[a-z-]+", command))
    assert flags <= {option.flag for option in all_options()} | {"--config"}
    assert "--api-key-file ${CREDENTIALS_DIRECTORY}/api_keys.yaml" in command
    assert settings["LoadCredential"] == ["api_keys.yaml:/etc/quire/api_keys.yaml"]


def test_it_waits_as_long_as_an_ending_takes(settings):
    least = ServerSettings().shutdown_timeout_s + EXIT_S
    assert float(settings["TimeoutStopSec"][0]) > least
    assert settings["KillMode"] == ["mixed"]


def test_a_server_that_failed_is_started_again(settings):
    assert settings["Restart"] == ["on-failure"]
    limit, interval = settings["StartLimitBurst"][0], settings["StartLimitIntervalSec"][0]
    assert int(limit) * float(settings["RestartSec"][0]) < int(interval)  # or it never counts


def test_what_it_writes_lies_in_its_cache(settings):
    paths = [value.partition("=")[2] for value in settings["Environment"] if "/" in value]
    (folder,) = settings["CacheDirectory"]
    assert paths
    assert all(path.startswith(f"/var/cache/{folder}") for path in paths)


@NEEDS_SYSTEMD
def test_systemd_accepts_it(unit, tmp_path):
    text = unit.read_text().replace("/opt/quire/bin/quire", sys.executable)
    copy = tmp_path / unit.name
    copy.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@NEEDS_SYSTEMD
def test_systemd_finds_little_exposure(unit):
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:]
