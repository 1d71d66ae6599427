"""Code that a checkpoint brings: what is imported, and what is refused before."""

import pytest
from transformers_families import tiny_config

from quire.errors import UnsupportedModelError
from quire_models.transformers_fallback.checkpoint_code import checkpoint_classes
from quire_models.transformers_fallback.fallback_description import describe_by_transformers

CONFIG = """
from transformers import LlamaConfig
class AcmeConfig(LlamaConfig):
    model_type = "acme"
"""
MODEL = """
from transformers import LlamaForCausalLM
from .configuration_acme import AcmeConfig
from .first_layer import name
class AcmeForCausalLM(LlamaForCausalLM):
    config_class = AcmeConfig
    layer_name = name
"""
AUTO_MAP = {
    "AutoConfig": "configuration_acme.AcmeConfig",
    "AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of four modules that import each other."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "configuration_acme.py").write_text(CONFIG)
    (folder / "modeling_acme.py").write_text(MODEL)
    (folder / "first_layer.py").write_text("from .second_layer import name\n")
    (folder / "second_layer.py").write_text("name = 'second'\n")
    return folder


def config_of(**values):
    return {"architectures": ["AcmeForCausalLM"], "model_type": "acme", **values}


def mapped(reference, name="AutoModelForCausalLM"):
    return config_of(auto_map={**AUTO_MAP, name: reference})


def test_modules_that_import_each_other_are_imported(folder):
    model_class, config_class = checkpoint_classes(config_of(auto_map=AUTO_MAP), folder)
    assert model_class.layer_name == "second"
    assert config_class.model_type == "acme"


def test_the_class_of_auto_map_runs_whatever_name_the_config_gives_the_architecture(folder):
    values = {**tiny_config("llama").to_dict(), "auto_map": AUTO_MAP, "model_type": "acme"}
    found = describe_by_transformers({**values, "architectures": ["OtherForCausalLM"]}, folder)
    assert (found.architecture, found.num_layers) == ("OtherForCausalLM", 4)


@pytest.mark.parametrize(
    "reference", ["../evil.Evil", "{outside}.Evil", "sub/evil.Evil", "sub.evil.Evil"]
)
def test_a_module_outside_of_the_folder_is_refused_and_not_run(folder, tmp_path, reference):
    marker = tmp_path / "ran"
    code = (
        f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n{MODEL}\nEvil = AcmeForCausalLM\n"
    )
    (folder / "sub").mkdir()
    for evil in (tmp_path / "evil.py", folder / "sub" / "evil.py"):
        evil.write_text(code)
    given = reference.format(outside=tmp_path / "evil")
    with pytest.raises(UnsupportedModelError, match=r"must have a class of a module in the check"):
        checkpoint_classes(mapped(given), folder)
    assert not marker.exists()


@pytest.mark.parametrize("reference", [3, "", "AcmeForCausalLM", ["modeling_acme.Acme", None]])
def test_a_reference_that_names_no_class_of_a_module_is_refused(folder, reference):
    with pytest.raises(UnsupportedModelError, match=r"has .* for AutoConfig, and must have a"):
        checkpoint_classes(mapped(reference, "AutoConfig"), folder)


@pytest.mark.parametrize("given", [["modeling_acme.AcmeForCausalLM"], "modeling_acme.AcmeFor"])
def test_an_auto_map_that_is_no_object_is_refused(folder, given):
    with pytest.raises(UnsupportedModelError, match=r"auto_map in its config\.json is .*object"):
        describe_by_transformers(config_of(auto_map=given), folder)


def test_code_for_other_tasks_is_no_model(folder):
    """The message does not advise the switch, which is set."""
    given = {"AutoConfig": AUTO_MAP["AutoConfig"], "AutoModel": "modeling_acme.AcmeModel"}
    reason = r"no model type 'acme'; auto_map .* AutoConfig, AutoModel, and none for AutoModelForCa"
    with pytest.raises(UnsupportedModelError, match=reason):
        describe_by_transformers(config_of(auto_map=given), folder)


def test_without_a_model_type_the_switch_is_named():
    config = {"architectures": ["AcmeForCausalLM"], "auto_map": AUTO_MAP}
    with pytest.raises(UnsupportedModelError, match="which only --trust-remote-code runs"):
        describe_by_transformers(config)


def test_a_config_without_a_class_of_its_own_needs_a_model_type_of_transformers(folder):
    given = {"AutoModelForCausalLM": AUTO_MAP["AutoModelForCausalLM"]}
    with pytest.raises(UnsupportedModelError, match=r"has no AutoConfig, and .* type 'acme'"):
        checkpoint_classes(config_of(auto_map=given), folder)


@pytest.mark.parametrize("body", ["AcmeForCausalLM = 3", "class AcmeForCausalLM: pass"])
def test_what_is_no_model_of_transformers_is_refused(folder, body):
    (folder / "modeling_acme.py").write_text(body)
    with pytest.raises(
        UnsupportedModelError, match=r"no subclass of transformers\.PreTrainedModel"
    ):
        checkpoint_classes(config_of(auto_map=AUTO_MAP), folder)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("raise ValueError('no\\nwheels')", "ValueError: no wheels"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def (:", "SyntaxError: invalid syntax"),
        ("class Other: pass", "has no attribute 'AcmeForCausalLM'"),
    ],
)
def test_code_that_fails_is_refused_with_the_cause(folder, body, cause):
    (folder / "modeling_acme.py").write_text(body)
    with pytest.raises(UnsupportedModelError, match=f"cannot be imported: .*{cause}"):
        checkpoint_classes(config_of(auto_map=AUTO_MAP), folder)
