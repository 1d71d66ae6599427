import json
import re
import sys

import pytest
from installed import sites, write_distribution

from quire import __version__
from quire.cli.main import main
from quire.cli.plugins import find, lines
from quire.plugins.kinds import KINDS
from quire.plugins.loading import load_plugins

site = pytest.fixture(sites)

OFFERS_APPLE = """
    from quire import hookimpl

    @hookimpl
    def register_lora_sources(registry):
        registry.add("apple", "json:JSONDecoder", api={api})

    @hookimpl
    def request_received(request): ...
""".replace("{api}", "1")

OFFERS_HELLO = """
    from quire import hookimpl
    from quire.interfaces.http_route import HTTPRouteCapabilities

    @hookimpl
    def register_routes(registry):
        registry.add("hello", "json:JSONDecoder", capabilities=HTTPRouteCapabilities(path="/hello"))
"""


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
    ours = f"loaded quire {__version__} attention_backends: torch_sdpa"
    assert ours in lines["quire_attention_backends"]
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


def test_a_contested_name_is_shown_once_for_each_plugin_that_offers_it(quire, site):
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


def test_the_doctor_names_the_plugins_that_contest_a_name_and_how_to_choose(quire, site):
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
    assert "has interface version 2; this quire supports 1" in problem["what"]
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


@pytest.mark.parametrize(
    ("kind", "capabilities"),
    [
        ("models", "quire.interfaces.model:ModelCapabilities(describe={})"),
        ("kv_stores", "quire.interfaces.kv_transfer:KVStoreCapabilities(worker={})"),
    ],
)
@pytest.mark.parametrize("reference", ["print", "None", "'acme.model'", "'acme/model:describe'"])
def test_capabilities_that_refer_to_code_by_no_import_string_fail_their_plugin(
    quire, site, kind, capabilities, reference
):
    module, _, made = capabilities.format(reference).partition(":")
    source = f"""
        from quire import hookimpl
        from {module} import *

        @hookimpl
        def register_{kind}(registry):
            registry.add("Acme", "json:JSONDecoder", capabilities={made})
    """
    site.install("acme", source)
    assert "must read 'package.module:attribute', got " in problems(quire)["failed"]["what"]


def test_the_doctor_checks_the_worker_of_a_kv_store_too(quire, site):
    source = """
        from quire import hookimpl
        from quire.interfaces.kv_transfer import KVStoreCapabilities

        @hookimpl
        def register_kv_stores(registry):
            there = KVStoreCapabilities(worker="no_such_module:Worker")
            registry.add("acme", "json:JSONDecoder", capabilities=there)
    """
    site.install("acme", source)
    assert "no_such_module:Worker" in problems(quire)["no_module"]["what"]


def test_the_doctor_finds_a_distribution_that_is_installed_twice(
    quire, site, tmp_path, monkeypatch
):
    stale = write_distribution(tmp_path / "stale", "acme", {"acme": "acme"}, "0.9")
    site.install("acme", OFFERS_APPLE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(stale)])
    problem = problems(quire)["shadowed"]
    assert f"{site.folder} is used, {stale} is not" in problem["what"]


def test_the_doctor_finds_a_distribution_whose_entry_points_cannot_be_read(quire, site):
    site.install("acme", OFFERS_APPLE)
    (site.folder / "acme-1.0.dist-info" / "entry_points.txt").write_text("[quire]\nacme\n")
    assert (
        "entry points of distribution acme cannot be read" in problems(quire)["unreadable"]["what"]
    )


def test_the_doctor_finds_a_name_that_leaves_nothing_out(quire):
    problem = problems(quire, "-p", "no:quire_model")["unknown_block"]
    assert "did you mean 'quire_models'?" in problem["what"]


@pytest.mark.parametrize(
    "group",
    [
        "quire.plugins",
        "quire_plugins",
        "quire-plugin",
        "Quire",
        "quireplugins",
        "acme.quire",
        "QUIRE",
    ],
)
def test_the_doctor_finds_entry_points_in_a_group_that_only_looks_like_ours(quire, site, group):
    points = {"acme": "acme_parts.plugin", "more": "acme_parts.more"}
    write_distribution(site.folder, "acme", points, group=group, requires=["quire"])
    found = problems(quire)
    problem = found["wrong_group"]
    assert problem["is_fatal"] is True
    assert "distribution acme 1.0 has entry points" in problem["what"]
    assert f"acme = acme_parts.plugin in {group!r}" in problem["what"]
    assert f"more = acme_parts.more in {group!r}" in problem["what"]
    assert "[project.entry-points.quire]" in problem["way_out"]
    assert 'acme = "acme_parts.plugin"' in problem["way_out"]
    assert "no_entry_point" not in found


@pytest.mark.parametrize("group", ["squire", "acme.plugins", "console_scripts", "requires.things"])
def test_the_doctor_leaves_the_groups_of_others_alone(quire, site, group):
    write_distribution(site.folder, "acme", {"acme": "acme"}, group=group)
    assert problems(quire) == {}


def test_a_plugin_may_have_groups_of_its_own(quire, site):
    site.install("acme", OFFERS_APPLE)
    points = "[quire]\nacme = acme\n[quire_acme.steps]\nstep = acme\n"
    (site.folder / "acme-1.0.dist-info" / "entry_points.txt").write_text(points)
    problem = problems(quire)["wrong_group"]
    assert problem["is_fatal"] is False
    assert "step = acme in 'quire_acme.steps'" in problem["what"]
    assert "acme = acme in" not in problem["what"]


@pytest.mark.parametrize(
    "requirement", ["quire", "Quire>=0.1", "quire[dev] (>=0.1)", 'quire ; python_version > "3"']
)
def test_the_doctor_notes_what_depends_on_quire_and_offers_nothing(quire, site, requirement):
    requires = ["torch", requirement]
    write_distribution(site.folder, "Acme.Parts", {}, "1.2", requires=requires)
    (site.folder / "Acme.Parts-1.2.dist-info" / "top_level.txt").write_text("acme\nother\n")
    found = problems(quire)
    assert list(found) == ["no_entry_point"]
    problem = found["no_entry_point"]
    assert problem["is_fatal"] is False
    assert "distribution Acme.Parts 1.2 depends on quire and has no entry" in problem["what"]
    assert "[project.entry-points.quire]" in problem["way_out"]
    assert 'acme = "acme.plugin"' in problem["way_out"]


def test_without_a_list_of_modules_the_example_is_made_of_the_distributions_name(quire, site):
    write_distribution(site.folder, "acme-quire", {}, requires=["quire"])
    assert 'acme_quire = "acme_quire.plugin"' in problems(quire)["no_entry_point"]["way_out"]


@pytest.mark.parametrize(
    "requirement",
    ["quire-tools", "squire", "quire.extras", 'quire; extra == "serving"', "torch (quire)"],
)
def test_a_distribution_that_does_not_need_quire_needs_no_entry_point(quire, site, requirement):
    write_distribution(site.folder, "acme", {}, requires=[requirement])
    assert problems(quire) == {}


def test_a_distribution_with_an_entry_point_gets_no_note(quire, site):
    write_distribution(site.folder, "acme", {"acme": "acme"}, requires=["quire"], acme=OFFERS_APPLE)
    assert problems(quire) == {}


def test_a_shadowed_copy_gets_no_note_about_entry_points(quire, site, tmp_path, monkeypatch):
    site.install("acme", OFFERS_APPLE)
    stale = write_distribution(tmp_path / "stale", "acme", {}, "0.9", requires=["quire"])
    monkeypatch.setattr(sys, "path", [*sys.path, str(stale)])
    assert list(problems(quire)) == ["shadowed"]


def test_the_doctor_notes_whose_offers_of_quires_names_are_passed_over(quire, site):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft"))
    problem = problems(quire)["passed_over"]
    assert problem["is_fatal"] is False
    assert problem["what"] == (
        f"LoRA source 'peft' of quire_lora (quire {__version__}) is also offered by acme "
        "(acme 1.0); quire's own is used"
    )
    assert "--prefer lora_sources:peft=acme" in problem["way_out"]
    assert problems(quire, "--prefer", "lora_sources:peft=acme") == {}


@pytest.mark.parametrize(
    ("change", "code", "way_out"),
    [
        (("json:JSONDecoder", "no_such_module:Peft"), "no_module", "fix the reference in acme"),
        (("api=1", "api=2"), "api_version", "upgrade quire"),
    ],
)
def test_a_broken_offer_of_a_name_that_another_serves_is_a_note(quire, site, change, code, way_out):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft").replace(*change))
    found = problems(quire)
    assert set(found) == {code, "passed_over"}
    assert found[code]["is_fatal"] is False
    assert found[code]["way_out"].startswith(way_out)
    assert "--prefer lora_sources:peft=acme fails" in found[code]["way_out"]
    assert "select" not in found[code]["way_out"]
    preferred = problems(quire, "--prefer", "lora_sources:peft=acme")[code]
    assert preferred["is_fatal"] is True
    assert "LoRA source 'peft' cannot be used" in preferred["way_out"]


def test_a_broken_offer_of_a_contested_name_is_a_problem(quire, site):
    site.install("acme", OFFERS_APPLE.replace("json:JSONDecoder", "no_such_module:Apple"))
    site.install("other", OFFERS_APPLE)
    assert problems(quire)["no_module"]["is_fatal"] is True


def test_the_doctor_tells_problems_before_notes(quire, site):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft").replace("api=1", "api=2"))
    site.install("other", OFFERS_APPLE.replace("json:JSONDecoder", "no_such_module:Apple"))
    assert list(problems(quire)) == ["no_module", "api_version", "passed_over"]


def test_the_list_marks_names_that_another_plugin_serves(quire, site):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft"))
    out = quire("list")[1]
    assert "lora_sources: peft~" in out
    assert out.count("~") == 2
    assert "~ another plugin serves it; see `quire plugins doctor`" in out
    (ours, theirs) = json.loads(quire("show", "lora_sources:peft", "--json")[1])["names"]
    assert (ours["plugin"], ours["served_by"]) == ("quire_lora", "quire_lora")
    assert (theirs["plugin"], theirs["served_by"]) == ("acme", "quire_lora")


def test_every_label_is_apart_from_its_value_whatever_a_kind_declares(site):
    site.install("acme", OFFERS_HELLO)  # quire has no route of a plugin
    plugins = load_plugins()
    seen = set()
    for registry in plugins.registries:
        for name in registry:
            (report,) = find(plugins, f"{registry.kind.name}:{name}")["names"]
            seen.add(registry.kind.capabilities)
            shown = list(lines(report))
            for key, value in (report | (report["capabilities"] or {})).items():
                label = key.replace("_", " ")
                if isinstance(value, bool | int | str):
                    pattern = rf" *{label} +{re.escape(str(value))}"
                    assert any(re.fullmatch(pattern, line) for line in shown), (name, label)
    assert seen == {kind.capabilities for kind in KINDS}


def test_a_long_capability_is_readable(quire):
    lines = quire("show", "LlamaForCausalLM")[1].splitlines()
    assert "  supports tensor parallel True" in lines
    assert any(line.startswith("plugin                   quire_models") for line in lines)


def test_the_doctor_notes_a_plugin_without_hooks_but_does_not_fail(quire, site):
    site.install("acme", "x = 1\n")
    found = problems(quire)
    assert "implements no hook" in found["idle"]["what"]
    assert found["idle"]["is_fatal"] is False


def test_a_plugin_that_is_named_and_broken_stops_every_command(site, capsys):
    site.install("broken", "import no_such_module")
    assert main(["plugins", "list", "-p", "broken"]) == 1
    assert "ModuleNotFoundError" in capsys.readouterr().err
