"""`quire worker`: keys, and what it needs to join an engine."""

import stat

import pytest

from quire.cli.main import main
from quire.process.launch_key import LaunchKey


def test_a_new_key_is_private_and_another_one_each_time(tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        assert main(["worker", "--new-key", str(file)]) == 0
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert LaunchKey.read(files[0], 0) != LaunchKey.read(files[1], 0)


def test_a_key_that_is_there_is_not_replaced(tmp_path, capsys):
    file = tmp_path / "key"
    file.write_text("a secret of somebody")
    assert main(["worker", "--new-key", str(file)]) == 1
    assert file.read_text() == "a secret of somebody"
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--rank", "0"], "--key-file is needed"),
        (["--key-file", "KEY"], "the rank is not known: give --rank"),
        (["--key-file", "KEY", "--rank", "0", "--count", "0"], "--count must be at least 1"),
        (["--key-file", "none", "--rank", "0", "--join-timeout-s", "0"], "no launch key in none"),
        (["--key-file", "KEY", "--rank", "0", "--join-timeout-s", "0.3"], "127.0.0.1:9"),
        *[
            (["--key-file", "KEY", "--rank", "0", f"--join-timeout-s={wrong}"], "11 days")
            for wrong in ("nan", "inf", "-1", "1e12")
        ],
        (["--key-file", "KEY", "--rank", "0", "--host-ip", "0.0.0.0"], "0.0.0.0"),
    ],
)
def test_what_is_missing_or_wrong_is_named(tmp_path, capsys, monkeypatch, words, text):
    for name in ("RANK", "SLURM_PROCID", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "LWS_WORKER_INDEX"):
        monkeypatch.delenv(name, raising=False)
    key = tmp_path / "key"
    LaunchKey.new().write(key)
    given = [str(key) if word == "KEY" else word for word in words]
    assert main(["worker", "--join", "127.0.0.1:9", *given]) == 1
    assert text in capsys.readouterr().err


def test_what_to_do_is_not_guessed(capsys):
    assert main(["worker"]) == 2
    assert "--join" in capsys.readouterr().err
