"""Arguments of a Serve application are quire's options, as YAML values or as text."""

from pathlib import Path

import pytest
import yaml

from quire.errors import SettingsError
from quire.ray.serve_arguments import read_arguments

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray_serve.yaml"


def test_values_of_yaml_and_text_of_a_command_line_are_the_same():
    typed = {"model": "demo", "max_num_seqs": 8, "enable_prefix_caching": False}
    text = {"model": "demo", "max-num-seqs": "8", "enable-prefix-caching": "false"}
    assert read_arguments(typed) == read_arguments(text)
    assert read_arguments(text).scheduler.max_num_seqs == 8


def test_an_option_that_is_misspelt_is_named():
    with pytest.raises(SettingsError, match="no option 'max_num_seq'; did you mean 'max_num_seqs'"):
        read_arguments({"max_num_seq": 8})


def test_a_wrong_value_is_named():
    with pytest.raises(SettingsError, match="arguments of the Serve application: max_num_seqs"):
        read_arguments({"max_num_seqs": "many"})


def test_the_number_of_replicas_is_serves_business():
    with pytest.raises(SettingsError, match="num_replicas or autoscaling_config"):
        read_arguments({"data_parallel_size": 2})


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("QUIRE_API_KEY", "secret")
    assert read_arguments({"model": "demo"}).server.api_key == ("secret",)


def test_the_example_has_options_of_quire():
    (application,) = yaml.safe_load(EXAMPLE.read_text())["applications"]
    assert application["import_path"] == "quire.ray:app"
    read_arguments(application["args"])
