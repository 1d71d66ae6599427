"""Selection of the model: by architecture, or a fallback that a plugin offers."""

from pathlib import Path

import pytest
from installed import sites

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.model_choice import choose_model
from quire.config import Settings
from quire.errors import (
    ApiVersionError,
    PluginLoadError,
    UnknownNameError,
    UnsupportedModelError,
)
from quire.plugins.loading import load_plugins

site = pytest.fixture(sites)

CONFIG = {
    "architectures": ["AcmeForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
FALLBACK = """
    from dataclasses import replace

    from quire import hookimpl
    from quire.errors import UnsupportedModelError
    from quire.interfaces.model import ModelCapabilities
    from quire_models.family_table import describe as describe_family

    def describe(config, code_folder):
        if "refuse" in config:
            raise UnsupportedModelError(config["refuse"])
        known = describe_family(config | {"architectures": ["LlamaForCausalLM"]})
        return replace(known, code_folder=code_folder)

    @hookimpl
    def register_models(registry):
        capabilities = ModelCapabilities(describe="acme:describe", is_fallback=True)
        registry.add("acme_any", "acme:Model", capabilities=capabilities, api=API)
"""
WORKING = FALLBACK.replace("API", "1")


def chosen(config=(), folder=Path("folder"), **options):
    checkpoint = Checkpoint("tiny", folder, CONFIG | dict(config))
    settings = Settings.from_options(options)
    return choose_model(load_plugins().registries.models, settings.model, checkpoint)


def test_a_registered_architecture_is_chosen_before_any_fallback(site):
    site.install("acme", WORKING)
    choice, _ = chosen({"architectures": ["LlamaForCausalLM"]})
    assert (choice.name, choice.reason) == ("LlamaForCausalLM", "named by the checkpoint")


def test_a_fallback_stands_for_architectures_that_no_plugin_registers(site):
    site.install("acme", WORKING)
    choice, description = chosen()
    assert (choice.name, choice.reason) == (
        "acme_any",
        "auto: no plugin registers AcmeForCausalLM",
    )
    assert description.num_layers == 2


def test_a_fallback_that_refuses_is_passed_over_with_its_reason(site):
    site.install("acme", WORKING)
    config = {"refuse": "no wheels", "model_type": "llama", "architectures": ["LlamaForCausalML"]}
    with pytest.raises(UnsupportedModelError) as caught:
        chosen(config)
    message = str(caught.value)
    assert "unknown model 'LlamaForCausalML'; did you mean 'LlamaForCausalLM'?" in message
    assert "fallback 'acme_any' either: no wheels" in message
    assert "fallback 'transformers' either: transformers" in message
    assert "register_models" in message


def test_fallbacks_are_no_architectures(site):
    site.install("acme", WORKING)
    choice, _ = chosen({"architectures": ["acme_any"]})
    assert choice.reason == "auto: no plugin registers acme_any"
    with pytest.raises(UnsupportedModelError) as caught:
        chosen({"architectures": ["acme_anx"]}, model_impl="quire")
    known = str(caught.value).partition("(known: ")[2]
    assert "acme_any" not in str(caught.value)
    assert "transformers" not in known


def test_a_fallback_can_be_asked_for(site):
    site.install("acme", WORKING)
    choice, _ = chosen({"architectures": ["LlamaForCausalLM"]}, model_impl="acme_any")
    assert (choice.name, choice.reason) == ("acme_any", "asked for")


def test_a_fallback_that_was_asked_for_and_refuses_stops_the_start(site):
    site.install("acme", WORKING)
    with pytest.raises(UnsupportedModelError, match=r"--model-impl acme_any: Acme.*: no wheels"):
        chosen({"refuse": "no wheels"}, model_impl="acme_any")


def test_quires_own_models_alone_can_be_asked_for(site):
    site.install("acme", WORKING)
    with pytest.raises(UnsupportedModelError, match="unknown model 'AcmeForCausalLM'"):
        chosen(model_impl="quire")


def test_an_unknown_implementation_is_refused_with_those_that_exist(site):
    site.install("acme", WORKING)
    with pytest.raises(UnknownNameError, match=r"known: auto, quire, acme_any, transformers\)"):
        chosen(model_impl="LlamaForCausalLM")


@pytest.mark.parametrize(("is_trusted", "expected"), [(False, None), (True, Path("folder"))])
def test_a_fallback_gets_the_checkpoints_folder_only_if_its_code_is_trusted(
    site, is_trusted, expected
):
    site.install("acme", WORKING)
    _, description = chosen(trust_remote_code=is_trusted)
    assert description.code_folder == expected


def test_a_fallback_of_another_interface_version_is_refused(site):
    site.install("acme", FALLBACK.replace("API", "9"))
    with pytest.raises(ApiVersionError):
        chosen(model_impl="acme_any")
    with pytest.raises(UnsupportedModelError, match=r"'acme_any' either: .*interface version 9"):
        chosen()


def test_a_fallback_that_fails_names_its_plugin(site):
    site.install("acme", WORKING.replace('"refuse" in config', "1 / 0"))
    with pytest.raises(PluginLoadError, match=r"'acme_any' of acme \(acme 1.0\).*ZeroDivision"):
        chosen(model_impl="acme_any")
