"""`quire config show`: the settings in force, and where each was set."""

import json

import pytest
import yaml

from quire.cli.command_parser import CommandParser
from quire.cli.main import main
from quire.cli.options import add_model_options, all_options
from quire.cli.setting_values import read_settings
from quire.config import GROUPS


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for option in all_options():
        monkeypatch.delenv(option.variable, raising=False)


def shown(capsys, *argv):
    assert main(["config", "show", *argv]) == 0
    return capsys.readouterr().out


def settings_of(*argv):
    parser = CommandParser(("serve",))
    add_model_options(parser, GROUPS)
    return read_settings(parser.read(argv))


ARGV = ["my-model", "--max-num-seqs", "7", "--samplers", "default,a", "--kv-cache-memory-bytes"]
ARGV += ["2GiB", "--no-enable-prefix-caching", "--shutdown-timeout-s", "0.5"]


@pytest.mark.parametrize("flags", [[], ["--origin"], ["--json"]])
def test_what_is_printed_gives_the_same_settings_as_a_file(capsys, tmp_path, flags):
    path = tmp_path / "settings.yaml"
    path.write_text(shown(capsys, *ARGV, *flags))
    assert settings_of("--config", str(path)) == settings_of(*ARGV)


def test_every_option_is_shown_in_its_group(capsys):
    text = shown(capsys)
    assert [*yaml.safe_load(text)] == [option.flag[2:] for option in all_options()]
    assert text.startswith("# The model and how it is loaded\nmodel: ")


def test_the_origin_of_each_value_is_shown(capsys, tmp_path, monkeypatch):
    path = tmp_path / "quire.yaml"
    path.write_text("max_num_queued: 5\nmax-num-seqs: 1\ndtype: float32\n")
    monkeypatch.setenv("QUIRE_DTYPE", "bfloat16")
    argv = ("--config", str(path), "--origin", "--max-num-seqs", "3")
    lines = shown(capsys, *argv).splitlines()
    assert "max-num-seqs: 3  # --max-num-seqs" in lines
    assert 'dtype: "bfloat16"  # QUIRE_DTYPE' in lines
    assert f"max-num-queued: 5  # {path}: max_num_queued" in lines
    assert "port: 8000  # default" in lines


def test_json_has_values_or_values_with_origins(capsys):
    plain = json.loads(shown(capsys, "--json", "--port", "9"))
    assert plain["port"] == 9
    detailed = json.loads(shown(capsys, "--json", "--origin", "--port", "9"))
    assert detailed["port"] == {"value": 9, "origin": "--port"}
    assert detailed["host"] == {"value": "127.0.0.1", "origin": "default"}


def test_a_secret_is_never_shown_and_its_line_is_a_comment(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("QUIRE_API_KEY", "open-sesame")
    for flags in ([], ["--json"], ["--origin"], ["--json", "--origin"]):
        assert "open-sesame" not in shown(capsys, *flags)
    text = shown(capsys, "--origin")
    assert '# api-key: "***"  # QUIRE_API_KEY' in text.splitlines()
    assert json.loads(shown(capsys, "--json"))["api-key"] == "***"


def test_what_is_shown_for_a_secret_is_not_taken_for_it(capsys, tmp_path):
    path = tmp_path / "quire.yaml"
    path.write_text('api-key: "***"\n')
    assert main(["config", "show", "--config", str(path)]) == 2
    assert "api_key is not ***, which `quire config show` prints" in capsys.readouterr().err


def test_wrong_settings_are_wrong_usage(capsys):
    assert main(["config", "show", "--max-num-seqs", "-1"]) == 2
    assert "max_num_seqs is set by --max-num-seqs; see `quire config show --help`" in (
        capsys.readouterr().err
    )
