"""The image runs without privileges, has no compiler, and is built from what the wheel needs."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cpp_compilers import NEEDS_COMPILER
from package_environment import UnreachableIndexError, package_environment
from served_process import served_process

from quire.cli.options import all_options
from quire.machine.instruction_sets import here

ROOT = Path(__file__).parents[2]
OPTIONS = {f"QUIRE_{option.flag[2:].replace('-', '_').upper()}" for option in all_options()}
OTHERS = {"QUIRE_CACHE_DIR", "QUIRE_CPU_ISA"}


@pytest.fixture(scope="module")
def dockerfile(deploy):
    return (deploy / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def stages(dockerfile):
    joined = re.sub(r"^#.*\n", "", dockerfile, flags=re.MULTILINE).replace("\\\n", " ")
    first, last = re.split(r"^(?=FROM )", joined, flags=re.MULTILINE)[1:]
    return first, last


def ignored(path, patterns):
    """Whether a `.dockerignore` leaves a file out; the last rule that matches counts."""
    found = False
    parents = [str(path), *map(str, path.parents)][:-1]
    for pattern in patterns:
        rule = pattern.removeprefix("!").removeprefix("**/")
        names = [Path(p).name for p in parents] if "**/" in pattern else parents
        if any(fnmatch.fnmatch(name, rule) for name in names):
            found = not pattern.startswith("!")
    return found


def context(folder):
    """Copy what the builder gets into a folder; return the number of bytes."""
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().split("\n")
        if line[:1] not in ("", "#")
    ]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    kept = [Path(name) for name in tracked if not ignored(Path(name), patterns)]
    for path in kept:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, folder / path)
    return sum((folder / path).stat().st_size for path in kept)


def test_a_wheel_can_be_built_from_what_the_builder_gets(tmp_path):
    assert context(tmp_path) < 32 * 2**20
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "quire_demo/checkpoint/model.safetensors" in names
    assert {
        str(p.relative_to(ROOT / "framework")) for p in ROOT.glob("framework/**/*.cpp")
    } <= names
    assert not (tmp_path / "tests").exists()


def test_the_last_stage_runs_as_a_user_and_installs_nothing(stages):
    _, last = stages
    assert re.search(r"^USER (\d+):\1$", last, re.MULTILINE)
    assert "apt-get" not in last
    assert "pip " not in last
    assert last.index("USER") < last.index("ENTRYPOINT")


def test_the_server_gets_the_signals(stages):
    assert 'ENTRYPOINT ["quire", "serve"]' in stages[1]  # a shell would keep them
    assert "STOPSIGNAL SIGTERM" in stages[1]


def test_both_stages_mean_the_same_kernels(stages):
    for stage in stages:
        assert "ARG CPU_ISA=avx2" in stage
        assert "QUIRE_CACHE_DIR=/opt/quire/cache" in stage
        assert "QUIRE_CPU_ISA=${CPU_ISA}" in stage


def test_variables_are_options(dockerfile):
    named = set(re.findall(r"\bQUIRE_[A-Z_]+", dockerfile))
    assert named - OTHERS <= OPTIONS
    assert {"QUIRE_HOST", "QUIRE_PORT", "QUIRE_HEALTH_PORT"} <= named


def test_the_health_check_asks_a_server_that_lives_and_notes_one_that_does_not(stages, tmp_path):
    found = re.search(r'^HEALTHCHECK .*? CMD \["python", "-c", "(.*)"\]$', stages[1], re.MULTILINE)
    code = found[1].replace('\\"', '"')
    environment = os.environ | {"QUIRE_HEALTH_PORT": "0"}
    dead = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert dead.returncode != 0
    with served_process(tmp_path / "log") as served:
        environment["QUIRE_HEALTH_PORT"] = str(served.client.base_url.port)
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.timeout(900)
def test_the_kernels_of_the_image_serve_without_a_compiler(stages, tmp_path):
    (step,) = re.findall(r"^RUN (quire run .*)$", stages[0], re.MULTILINE)
    isa = here()
    if isinstance(isa, str):
        pytest.skip(isa)
    environment = os.environ | {"QUIRE_CACHE_DIR": str(tmp_path), "QUIRE_CPU_ISA": isa.name}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    run = {"env": environment, "capture_output": True, "text": True, "check": False}
    built = subprocess.run(["sh", "-ec", step.replace("/opt/quire", str(tmp_path))], **run)
    assert built.returncode == 0, built.stderr
    environment["CXX"] = "/nonexistent/c++"
    for flags in ("", "--quantization int8", "--enable-lora"):
        command = f"quire run demo Hello --max-tokens 2 --kernels native {flags}"
        done = subprocess.run(["sh", "-c", command], **run)
        assert done.returncode == 0, done.stderr
        assert "torch operators" not in done.stderr


@pytest.mark.slow
def test_hadolint_finds_nothing(deploy):
    try:
        programs = package_environment(Path(__file__).parent / "requirements", "linters")
    except UnreachableIndexError as error:
        pytest.skip(str(error))
    command = [programs / "hadolint", "--failure-threshold", "info", deploy / "Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
