import json
import sys

import pytest
from installed import sites, write_distribution

from quire.cli.main import main

site = pytest.fixture(sites)

OFFERS_APPLE = """
    from quire import hookimpl

    @hookimpl
    def register_lora_sources(registry):
        registry.add("apple", "json:JSONDecoder", api={api})

    @hookimpl
    def request_received(request): ...
""".replace("{api}", "1")


@pytest.fixture
def quire(capsys):
    def run(*argv):
        status = main(["plugins", *argv])
        return status, capsys.readouterr().out

    return run


def problems(quire, *argv):
    status, out = quire("doctor", "--json", *argv)
    found = json.loads(out)
    assert status == int(any(problem["is_fatal"] for problem in found))
    return {problem["code"]: problem for problem in found}


def test_the_list_has_every_plugin_with_what_it_offers(quire, site):
    site.install("acme", OFFERS_APPLE)
    status, out = quire("list")
    assert status == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.strip()}
    assert "loaded quire 0.1.0 attention_backends: torch_sdpa" in lines["quire_attention_backends"]
    assert lines["acme"] == "acme loaded acme 1.0 lora_sources: apple"
    assert lines["hooks:"] == "hooks: request_received"


def test_the_list_marks_contested_names_and_failures(quire, site):
    site.install("acme", OFFERS_APPLE)
    site.install("other", OFFERS_APPLE)
    site.install("broken", "import no_such_module")
    out = quire("list")[1]
    assert "lora_sources: apple*" in out
    assert "* several plugins offer it; see `quire plugins doctor`" in out
    assert "failed  broken 1.0    ModuleNotFoundError: No module named 'no_such_module'" in out


def test_the_list_shows_what_was_left_out_and_what_is_off(quire, site):
    site.install("acme", OFFERS_APPLE)
    site.install("other", OFFERS_APPLE)
    out = quire("list", "-p", "no:quire_demo", "--disable-plugin-autoload", "-p", "acme")[1]
    states = {
        line.split()[0]: line.split()[1] for line in out.splitlines() if len(line.split()) > 1
    }
    assert (states["quire_demo"], states["acme"], states["other"]) == ("blocked", "loaded", "off")


def test_the_list_as_json_has_the_same_and_more(quire, site):
    site.install("broken", "import no_such_module")
    status, out = quire("list", "--json")
    reports = {report["name"]: report for report in json.loads(out)}
    assert status == 0
    assert "no_such_module" in reports["broken"]["traceback"]
    assert reports["quire_models"]["file"].endswith("plugin.py")


def test_a_plugin_is_shown_by_its_name_or_its_distributions(quire, site):
    site.install("acme-fruit", OFFERS_APPLE)
    for name in ("acme_fruit", "acme-fruit"):
        status, out = quire("show", name)
        assert status == 0
        assert str(site.folder / "acme_fruit.py") in out
        assert "lora_sources:apple  json:JSONDecoder" in out
        assert "register_lora_sources, request_received" in out


def test_an_offered_name_is_shown_with_its_capabilities_and_its_file(quire):
    for name in ("torch_sdpa", "attention_backends:torch_sdpa"):
        status, out = quire("show", name)
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert status == 0
        assert "devices cpu, cuda" in lines
        assert "plugin quire_attention_backends" in lines
        assert any(line.startswith("file ") and line.endswith("torch_sdpa.py") for line in lines)


def test_a_contested_name_is_shown_once_for_each_who_offers_it(quire, site):
    site.install("acme", OFFERS_APPLE)
    site.install("other", OFFERS_APPLE)
    found = json.loads(quire("show", "apple", "--json")[1])
    assert [entry["plugin"] for entry in found["names"]] == ["acme", "other"]
    assert all(entry["is_contested"] for entry in found["names"])


def test_a_failed_plugin_is_shown_with_its_traceback(quire, site):
    site.install("broken", "import no_such_module")
    out = quire("show", "broken")[1]
    assert "| ModuleNotFoundError: No module named 'no_such_module'" in out


def test_showing_an_unknown_name_suggests_the_nearest(capsys):
    assert main(["plugins", "show", "torch_spda"]) == 1
    error = capsys.readouterr().err
    assert "no offered name 'torch_spda'" in error
    assert "did you mean 'torch_sdpa'?" in error


def test_the_doctor_finds_nothing_wrong_with_our_own_plugins(quire):
    status, out = quire("doctor")
    assert status == 0, out
    assert out.endswith("plugins, 0 problems\n")


def test_the_doctor_shows_the_traceback_of_a_failed_plugin_and_the_way_out(quire, site):
    site.install("broken", "import no_such_module")
    status, out = quire("doctor")
    assert status == 1
    assert "problem: plugin broken (broken 1.0) failed to load: ModuleNotFoundError" in out
    assert "leave it out with -p no:broken" in out
    assert "  | Traceback (most recent call last):" in out
    assert out.endswith("1 problem\n")


def test_the_doctor_suggests_the_right_spelling_of_a_hook(quire, site):
    site.install("broken", OFFERS_APPLE.replace("lora_sources", "lora_source"))
    assert "did you mean 'register_lora_sources'" in problems(quire)["failed"]["what"]


def test_the_doctor_names_who_contests_a_name_and_how_to_choose(quire, site):
    site.install("acme", OFFERS_APPLE)
    site.install("other", OFFERS_APPLE)
    problem = problems(quire)["contested"]
    assert "acme (acme 1.0) and other (other 1.0)" in problem["what"]
    assert "--prefer lora_sources:apple=acme" in problem["way_out"]
    assert not problems(quire, "--prefer", "lora_sources:apple=acme")
    assert not problems(quire, "-p", "no:other")


def test_the_doctor_finds_an_interface_version_that_is_not_served(quire, site):
    site.install("acme", OFFERS_APPLE.replace("api=1", "api=2"))
    problem = problems(quire)["api_version"]
    assert "speaks version 2 of its interface; this quire serves 1" in problem["what"]
    assert "upgrade quire" in problem["way_out"]


def test_the_doctor_finds_references_to_modules_that_do_not_exist(quire, site):
    site.install("acme", OFFERS_APPLE.replace("json:JSONDecoder", "acme_fruit.apple:Apple"))
    problem = problems(quire)["no_module"]
    assert (
        "points at acme_fruit.apple:Apple, and there is no module acme_fruit.apple"
        in (problem["what"])
    )


def test_the_doctor_checks_the_describe_of_a_model_too(quire, site):
    source = """
        from quire import hookimpl
        from quire.interfaces.model import ModelCapabilities

        @hookimpl
        def register_models(registry):
            there = ModelCapabilities(describe="no_such_module:describe")
            registry.add("Acme", "json:JSONDecoder", capabilities=there)
    """
    site.install("acme", source)
    assert "no_such_module:describe" in problems(quire)["no_module"]["what"]


def test_the_doctor_finds_a_distribution_that_is_installed_twice(
    quire, site, tmp_path, monkeypatch
):
    stale = write_distribution(tmp_path / "stale", "acme", {"acme": "acme"}, "0.9")
    site.install("acme", OFFERS_APPLE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(stale)])
    problem = problems(quire)["shadowed"]
    assert f"{site.folder} counts, {stale} does not" in problem["what"]


def test_the_doctor_finds_a_distribution_whose_entry_points_cannot_be_read(quire, site):
    site.install("acme", OFFERS_APPLE)
    (site.folder / "acme-1.0.dist-info" / "entry_points.txt").write_text("[quire]\nacme\n")
    assert (
        "entry points of distribution acme cannot be read" in problems(quire)["unreadable"]["what"]
    )


def test_the_doctor_finds_a_name_that_leaves_nothing_out(quire):
    problem = problems(quire, "-p", "no:quire_model")["unknown_block"]
    assert "did you mean 'quire_models'?" in problem["what"]


def test_the_doctor_notes_a_plugin_without_hooks_but_does_not_fail(quire, site):
    site.install("acme", "x = 1\n")
    found = problems(quire)
    assert "implements no hook" in found["idle"]["what"]
    assert found["idle"]["is_fatal"] is False


def test_a_plugin_that_is_named_and_broken_stops_every_command(site, capsys):
    site.install("broken", "import no_such_module")
    assert main(["plugins", "list", "-p", "broken"]) == 1
    assert "ModuleNotFoundError" in capsys.readouterr().err
