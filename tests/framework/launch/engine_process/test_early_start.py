"""Early start of the engine process: before the parts are chosen, and ended if none are."""

import os
import signal
import subprocess
import sys

import pytest
from processes import eventually

from quire.config import Settings
from quire.errors import EngineDeadError
from quire.launch.engine_process.early_start import has_engine_process, started_early
from quire.launch.engine_process.remote_core import RemoteCore
from quire.launch.starting_engine import begin_engine
from quire.testing.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


def is_there(pid):
    return os.path.exists(f"/proc/{pid}")


def test_it_is_configured_later_and_becomes_the_engine(folder):
    settings = Settings.from_options({"model": folder, "num_kv_blocks": 8})
    with started_early(settings) as process:
        starting = begin_engine(settings, is_serving=True, early=process)
        assert starting.process is process
        core, started = RemoteCore.of(process)
        assert started.max_model_len == 7 * 16 + 1
        assert core.pid == process.link.pid
        core.shutdown()
    assert not is_there(core.pid)


def test_a_process_that_was_not_configured_ends_with_the_block(folder):
    with started_early(Settings.from_options({"model": folder})) as process:
        pid, address = process.link.pid, process.address
        assert is_there(pid)
    assert not is_there(pid)
    assert not os.path.exists(os.path.dirname(address.removeprefix("unix://")))


def test_a_process_whose_parent_closes_without_a_configuration_ends_silently(folder, capfd):
    with started_early(Settings.from_options({"model": folder})) as process:
        process.link.configure(b"")
        eventually(lambda: process.link.channel.wait(0.0) != [], timeout_s=60)
        with pytest.raises(EngineDeadError, match="exit code 0"):
            process.wait()
    assert capfd.readouterr().err == ""


def test_a_process_that_dies_before_it_is_configured_is_reported(folder):
    settings = Settings.from_options({"model": folder})
    with started_early(settings) as process:
        os.kill(process.link.pid, signal.SIGKILL)
        starting = begin_engine(settings, is_serving=True, early=process)
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            RemoteCore.of(starting.process)


@pytest.mark.parametrize("options", [{"engine_process": False}, {"data_parallel_size": 2}])
def test_an_engine_here_or_in_several_processes_has_no_early_one(folder, options):
    with started_early(Settings.from_options({"model": folder} | options)) as process:
        assert process is None


def test_little_is_imported_before_the_process_is_launched():
    code = (
        "import sys; import quire.launch.engine_process.early_start; "
        "heavy = ('torch', 'numpy', 'jinja2', 'starlette', 'tokenizers', 'asyncio', 'pluggy'); "
        "sys.exit(any(name in sys.modules for name in heavy))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("asked", "platform", "is_serving", "expected"),
    [
        (None, "linux", True, True),
        (None, "darwin", True, False),
        (None, "linux", False, False),
        (True, "linux", False, True),
        (False, "linux", True, False),
    ],
)
def test_by_default_only_a_server_has_its_engine_elsewhere(
    folder, asked, platform, is_serving, expected
):
    settings = Settings.from_options({"model": folder, "engine_process": asked})
    found = has_engine_process(settings, is_serving=is_serving, platform=platform)
    assert found is expected
