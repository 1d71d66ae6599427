"""Examples that start an engine over several machines: their shell, and their options."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from quire.cli import serve, worker
from quire.cli.command_parser import CommandParser
from quire.cli.setting_values import read_settings
from quire.config import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
SLURM = EXAMPLES / "slurm.sbatch"
LEADER_WORKER_SET = EXAMPLES / "leader_worker_set.yaml"
NODES = "node[1-2]"
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORDED"], "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
if "--new-key" in sys.argv:
    open(sys.argv[-1], "x").close()
"""
# The addresses are of the documentation's networks (RFC 5737).
PROGRAMS = {
    "quire": RECORDER,
    "srun": '#!/bin/sh\nexec "$@"\n',
    "scontrol": f'#!/bin/sh\n[ "$3" = "{NODES}" ] && printf "node1\\nnode2\\n"\n',
    "getent": '#!/bin/sh\n[ "$2" = node2 ] && echo "192.0.2.2 STREAM node2"\n'
    'echo "192.0.2.9 DGRAM"\n',
    "ip": '#!/bin/sh\n[ "$3" = 192.0.2.2 ] && '
    'printf "192.0.2.2 via 192.0.2.254 dev eth1 src 192.0.2.1 uid 0 \\n    cache \\n"\n',
}


@pytest.fixture
def run(tmp_path):
    """Run a shell with programs that record the arguments of `quire`; return the arguments."""
    programs, recorded = tmp_path / "programs", tmp_path / "recorded"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)

    def run(*command, num_calls, **variables):
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "RECORDED": str(recorded),
        }
        subprocess.run(command, check=True, timeout=60, env=environment | variables)
        deadline = time.monotonic() + 60  # for those in the background
        while len(lines := recorded.read_text().splitlines()) < num_calls:
            assert time.monotonic() < deadline, lines
            time.sleep(0.01)
        calls = [json.loads(line) for line in lines]
        recorded.unlink()
        return calls

    return run


def worker_arguments(call: list[str]) -> argparse.Namespace:
    """Return what `quire worker` reads from its command line."""
    assert call[0] == "worker"
    parser = CommandParser(("worker",))
    worker.add_arguments(parser)
    return parser.read(call[1:])


def serve_settings(call: list[str]) -> Settings:
    """Return what `quire serve` reads from its command line."""
    assert call[0] == "serve"
    parser = CommandParser(("serve",))
    serve.add_arguments(parser)
    return read_settings(parser.read(call[1:]))


def check_fits(settings: Settings, workers: list[argparse.Namespace], key_file: str) -> None:
    """Check that workers join the engine at its address, with its key."""
    parallel = settings.parallel
    assert parallel.executor == "joined"
    assert parallel.worker_key_file == key_file
    assert {(one.join, one.key_file) for one in workers} == {(parallel.worker_address, key_file)}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_slurm_starts_an_engine_and_its_workers_at_the_address_that_others_reach(run, tmp_path):
    subprocess.run(["bash", "-n", SLURM], check=True)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": NODES}
    calls = run("bash", str(SLURM), num_calls=3, **job)
    key_file = str(tmp_path / ".quire-7.key")
    assert worker_arguments(calls[0]).new_key == key_file
    [served] = [call for call in calls if call[0] == "serve"]
    [joined] = [call for call in calls[1:] if call[0] == "worker"]
    settings, arguments = serve_settings(served), worker_arguments(joined)
    check_fits(settings, [arguments], key_file)
    assert settings.parallel.worker_address == "192.0.2.1:4711"
    assert not Path(key_file).exists()  # it is removed at the end
    sizes = dict(re.findall(r"#SBATCH --(nodes|ntasks-per-node)=(\d+)", SLURM.read_text()))
    parallel = settings.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    assert int(sizes["nodes"]) * int(sizes["ntasks-per-node"]) * arguments.count == num_ranks


def pods() -> dict[str, str]:
    """Return the shell command of each container."""
    manifest = next(yaml.safe_load_all(LEADER_WORKER_SET.read_text()))
    template = manifest["spec"]["leaderWorkerTemplate"]
    containers = [
        container
        for part in ("leaderTemplate", "workerTemplate")
        for container in template[part]["spec"]["containers"]
    ]
    assert {tuple(container["command"]) for container in containers} == {("/bin/sh", "-c")}
    return {container["name"]: container["args"][0] for container in containers}


def test_kubernetes_starts_an_engine_and_its_workers(run):
    address = {"POD_IP": "192.0.2.1", "LWS_LEADER_ADDRESS": "192.0.2.1"}
    shell = pods()
    calls = run("sh", "-c", shell["engine"], num_calls=2, **address)
    calls += run("sh", "-c", shell["worker"], num_calls=1, **address)
    [served] = [call for call in calls if call[0] == "serve"]
    workers = [worker_arguments(call) for call in calls if call[0] == "worker"]
    settings = serve_settings(served)
    check_fits(settings, workers, "/keys/key")
    parallel = settings.parallel
    num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    assert sum(one.count for one in workers) == num_ranks
