import json
import logging
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from installed import sites, write_distribution

from quire.config import PluginSettings
from quire.errors import (
    ContestedNameError,
    PluginLoadError,
    RequestFailedError,
    SettingsError,
    UnknownNameError,
)
from quire.plugins.discovery import Candidate, discover, locate, shadowed_distributions
from quire.plugins.isolation import known_hooks
from quire.plugins.loading import AUTOLOAD_OFF, load_plugins
from quire.plugins.registry import Source
from quire.plugins.report import plugins_report

site = pytest.fixture(sites)

OFFERS_APPLE = """
    from quire import hookimpl

    @hookimpl
    def register_lora_sources(registry):
        registry.add("apple", "json:JSONDecoder")
"""
RAISES_MIDWAY = """
    from quire import hookimpl

    @hookimpl
    def register_lora_sources(registry):
        registry.add("pear", "json:JSONDecoder")

    @hookimpl
    def register_executors(registry):
        raise RuntimeError("midway")
"""


def record_of(plugins, name):
    return next(record for record in plugins.records if record.source.plugin == name)


def load(*plugins, **settings):
    return load_plugins(PluginSettings(plugins=plugins, **settings))


def test_our_own_plugins_come_through_entry_points():
    loaded = {r.source.plugin for r in load_plugins().records if r.state == "loaded"}
    assert {"quire_models", "quire_samplers", "quire_attention_backends"} <= loaded


def test_a_third_party_plugin_is_loaded_like_ours(site):
    site.install("acme-fruit", OFFERS_APPLE)
    plugins = load_plugins()
    record = record_of(plugins, "acme_fruit")
    assert record.state == "loaded"
    assert record.source == Source("acme_fruit", "acme-fruit", "1.0")
    assert record.hooks == ("register_lora_sources",)
    assert plugins.registries.lora_sources.entry("apple").source == record.source


def test_ours_come_first_and_then_names_decide(site):
    for name in ("zebra", "aardvark", "quire_aaa"):
        site.install(name, OFFERS_APPLE.replace("apple", name))
    names = [record.source.plugin for record in load_plugins().records]
    ours = [name for name in names if name.startswith("quire_") and name != "quire_aaa"]
    assert names == [*sorted(ours), "aardvark", "quire_aaa", "zebra"]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("this is no python", "SyntaxError: invalid syntax"),
        (RAISES_MIDWAY, "RuntimeError: midway"),
    ],
)
def test_a_plugin_that_fails_affects_no_other(site, source, error):
    site.install("broken", source)
    site.install("sound", OFFERS_APPLE)
    plugins = load_plugins()
    record = record_of(plugins, "broken")
    assert record.state == "failed"
    assert record.error.startswith(error)
    assert "Traceback" in record.traceback
    assert record_of(plugins, "sound").state == "loaded"
    assert plugins.failed == [record]


def test_nothing_remains_of_a_plugin_that_fails_midway(site):
    site.install("broken", RAISES_MIDWAY)
    plugins = load_plugins()
    assert all("pear" not in registry for registry in plugins.registries)
    assert record_of(plugins, "broken").entries == ()
    assert "broken" not in plugins.managers


def test_an_unknown_name_counts_the_plugins_that_failed(site):
    site.install("broken", RAISES_MIDWAY)
    with pytest.raises(UnknownNameError, match="1 plugin failed to load"):
        load_plugins().registries.lora_sources.get("pear")


def test_a_misspelt_hook_fails_the_plugin_with_the_right_spelling(site):
    site.install("broken", OFFERS_APPLE.replace("register_lora_sources", "register_lora_surces"))
    error = record_of(load_plugins(), "broken").error
    assert "no hook 'register_lora_surces'; did you mean 'register_lora_sources'?" in error


def test_a_hook_with_an_argument_that_it_does_not_have_fails_the_plugin(site):
    site.install("broken", OFFERS_APPLE.replace("(registry)", "(registry, settings)"))
    error = record_of(load_plugins(), "broken").error
    assert "settings" in error
    assert "docs/hooks.md" in error


def test_a_hook_may_leave_arguments_out(site):
    source = "from quire import hookimpl\n@hookimpl\ndef request_finished(output): ...\n"
    site.install("sound", source)
    assert record_of(load_plugins(), "sound").state == "loaded"


def test_a_hook_without_its_decorator_fails_the_plugin(site):
    site.install("broken", OFFERS_APPLE.replace("@hookimpl", ""))
    error = record_of(load_plugins(), "broken").error
    assert "register_lora_sources has the name of a hook, but no @hookimpl above it" in error


def test_a_wrong_call_of_add_fails_the_plugin(site):
    site.install("broken", OFFERS_APPLE.replace("json:JSONDecoder", "json.JSONDecoder"))
    assert "must read 'package.module:attribute'" in record_of(load_plugins(), "broken").error


def test_an_error_is_one_line_and_its_traceback_names_the_file(site):
    site.install("broken", "raise ValueError('two\\nlines')")
    record = record_of(load_plugins(), "broken")
    assert record.error == "ValueError: two lines"
    assert str(site.folder / "broken.py") in record.traceback


@pytest.mark.parametrize("name", ["acme_fruit", "acme-fruit"])
def test_a_plugin_is_left_out_by_its_name_or_its_distributions(site, name):
    site.install("acme-fruit", "raise RuntimeError('imported')")
    plugins = load(f"no:{name}")
    assert record_of(plugins, "acme_fruit").state == "blocked"
    assert "acme_fruit" not in sys.modules


def test_our_own_plugins_can_be_left_out_as_well():
    plugins = load("no:quire_samplers")
    assert len(plugins.registries.samplers) == 0


def test_leaving_out_what_is_not_installed_is_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        plugins = load("no:quire_sampler")
    assert plugins.unknown_blocks == ("quire_sampler",)
    assert "no such plugin is installed; did you mean 'quire_samplers'?" in caplog.text


@pytest.mark.parametrize("value", ["1", "true", "YES"])
def test_a_variable_switches_discovery_off(site, monkeypatch, value):
    site.install("acme", OFFERS_APPLE)
    monkeypatch.setenv(AUTOLOAD_OFF, value)
    plugins = load_plugins()
    assert record_of(plugins, "acme").state == "off"
    assert record_of(plugins, "quire_models").state == "loaded"


@pytest.mark.parametrize("value", ["0", "false", "no"])
def test_a_variable_that_says_no_leaves_discovery_on(site, monkeypatch, value):
    site.install("acme", OFFERS_APPLE)
    monkeypatch.setenv(AUTOLOAD_OFF, value)
    assert record_of(load_plugins(), "acme").state == "loaded"


def test_a_variable_that_is_no_truth_value_is_refused(monkeypatch):
    monkeypatch.setenv(AUTOLOAD_OFF, "maybe")
    with pytest.raises(SettingsError, match=f"{AUTOLOAD_OFF} must be true or false, got 'maybe'"):
        load_plugins()


def test_a_setting_counts_more_than_the_variable(site, monkeypatch):
    site.install("acme", OFFERS_APPLE)
    monkeypatch.setenv(AUTOLOAD_OFF, "1")
    assert record_of(load(disable_plugin_autoload=False), "acme").state == "loaded"


def test_with_discovery_off_a_named_plugin_is_loaded_and_no_other(site):
    site.install("acme", OFFERS_APPLE)
    site.install("other", OFFERS_APPLE)
    plugins = load("acme", disable_plugin_autoload=True)
    assert record_of(plugins, "acme").state == "loaded"
    assert record_of(plugins, "other").state == "off"


def test_a_named_plugin_that_fails_stops_with_its_traceback(site):
    site.install("broken", RAISES_MIDWAY)
    with pytest.raises(PluginLoadError, match=r"plugin broken \(broken 1.0\) failed") as caught:
        load("broken")
    assert 'RuntimeError("midway")' in str(caught.value)


def test_a_named_plugin_that_is_not_installed_stops_with_the_nearest_name():
    with pytest.raises(PluginLoadError, match=r"'quire_sampler' is not .*'quire_samplers'"):
        load("quire_sampler")


def test_a_plugin_cannot_be_named_and_left_out():
    with pytest.raises(SettingsError, match="contradict"):
        load("quire_models", "no:quire_models")
    with pytest.raises(SettingsError, match="both named and left out"):
        load("quire_models", "no:quire")


def test_two_distributions_may_use_one_entry_point_name(site):
    site.install("acme-one", OFFERS_APPLE, module="one", point="fruit")
    site.install("acme-two", OFFERS_APPLE.replace("apple", "pear"), module="two", point="fruit")
    plugins = load_plugins()
    assert record_of(plugins, "fruit@acme-one").state == "loaded"
    assert record_of(plugins, "fruit@acme-two").state == "loaded"
    assert {"apple", "pear"} <= set(plugins.registries.lora_sources)
    states = {r.source.plugin: r.state for r in load("no:fruit").records}
    assert states["fruit@acme-one"] == states["fruit@acme-two"] == "blocked"


def test_a_contested_name_is_fatal_only_when_it_is_selected(site):
    site.install("acme-one", OFFERS_APPLE)
    site.install("acme-two", OFFERS_APPLE)
    registry = load_plugins().registries.lora_sources
    assert registry.entry("peft").source.distribution == "quire"
    with pytest.raises(ContestedNameError, match=r"acme-one 1.0\) and acme_two \(acme-two 1.0\)"):
        registry.get("apple")


def test_a_preference_decides_a_contested_name(site):
    site.install("acme-one", OFFERS_APPLE)
    site.install("acme-two", OFFERS_APPLE)
    plugins = load(prefer=("lora_sources:apple=acme_two",))
    assert plugins.registries.lora_sources.entry("apple").source.plugin == "acme_two"


def test_a_plugin_cannot_take_our_name_on_its_own_word(site):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft"))
    entry = load_plugins().registries.lora_sources.entry("peft")
    assert entry.source.plugin == "quire_lora"
    assert entry.passed_over == (Source("acme", "acme", "1.0"),)


def test_a_third_party_with_the_name_of_our_plugin_replaces_neither_it_nor_its_name(site):
    source = OFFERS_APPLE.replace("apple", "peft")
    site.install("acme-quire", source, module="acme", point="quire_lora")
    plugins = load(prefer=("lora_sources:peft=quire_lora",))
    assert record_of(plugins, "quire_lora").source.distribution == "quire"
    assert record_of(plugins, "quire_lora@acme-quire").state == "loaded"
    assert plugins.registries.lora_sources.entry("peft").source.distribution == "quire"


@pytest.mark.parametrize(
    ("preference", "error", "message"),
    [
        ("apple", SettingsError, "must be KIND:NAME=PLUGIN, got 'apple'"),
        ("lora_source:peft=quire_lora", UnknownNameError, "did you mean 'lora_sources'"),
        ("lora_sources:pfet=quire_lora", UnknownNameError, "did you mean 'peft'"),
        ("lora_sources:peft=quire_models", UnknownNameError, "it is offered by quire_lora"),
    ],
)
def test_a_preference_that_cannot_be_kept_is_refused(preference, error, message):
    with pytest.raises(error, match=message):
        load(prefer=(preference,))


def test_of_a_distribution_that_is_installed_twice_the_first_counts(site, tmp_path, monkeypatch):
    stale = write_distribution(tmp_path / "stale", "Acme.Fruit", {"acme": "acme_stale"}, "0.9")
    site.install("acme-fruit", OFFERS_APPLE)
    monkeypatch.setattr(sys, "path", [*sys.path, str(stale)])
    found = {c.name: c.source.version for c in discover()}
    assert found["acme_fruit"] == "1.0"
    assert "acme" not in found
    assert shadowed_distributions() == {"acme-fruit": [str(site.folder), str(stale)]}
    monkeypatch.setattr(sys, "path", [str(site.folder)] * 2)
    assert shadowed_distributions() == {}, "a folder that stands on the path twice is one place"


def test_metadata_that_cannot_be_read_stops_nothing(site):
    (site.folder / "half_removed-1.0.dist-info").mkdir()
    unreadable = site.folder / "unreadable-1.0.dist-info" / "METADATA"
    unreadable.parent.mkdir()
    unreadable.write_bytes(b"Name: \xff\xfe")
    site.install("sound", OFFERS_APPLE)
    assert record_of(load_plugins(), "sound").state == "loaded"


@pytest.mark.parametrize("content", [b"[quire]\nno equals sign\n", b"[quire]\na = \xff\xfe\n"])
def test_entry_points_that_cannot_be_read_stop_nothing_and_are_logged(site, caplog, content):
    site.install("broken", OFFERS_APPLE)
    (site.folder / "broken-1.0.dist-info" / "entry_points.txt").write_bytes(content)
    assert all(record.source.plugin != "broken" for record in load_plugins().records)
    assert "the entry points of distribution broken cannot be read" in caplog.text


def test_an_entry_point_that_is_no_reference_fails_alone(site):
    write_distribution(site.folder, "broken", {"broken": "a b c"})
    assert record_of(load_plugins(), "broken").state == "failed"


def test_modules_are_located_without_importing_their_packages(site):
    package = site.folder / "acme_heavy"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "part.py").write_text("")
    assert locate("acme_heavy.part:Thing") == str(package / "part.py")
    assert locate("acme_heavy:Thing") == str(package / "__init__.py")
    assert locate("acme_heavy.missing:Thing") is None
    assert locate("acme_heavy.part.deeper:Thing") is None
    assert locate("no_such_package.part:Thing") is None
    assert "acme_heavy" not in sys.modules


def test_candidates_can_be_given_in_place_of_the_installed_ones():
    point = EntryPoint("ours", "quire_samplers.plugin", "quire")
    plugins = load_plugins(found=[Candidate(point, Source("ours", "acme", "1.0"))])
    assert [record.source.plugin for record in plugins.records] == ["ours"]
    assert plugins.registries.samplers.entry("min_p").source.distribution == "acme"
    assert len(plugins.registries.models) == 0


def test_request_hooks_of_loaded_plugins_are_called_by_keyword_in_order(site):
    source = """
        from quire import hookimpl
        from quire.errors import RequestFailedError

        @hookimpl
        def request_received(request):
            raise RequestFailedError("{0} saw " + request)
    """
    for name in ("second", "first"):
        site.install(name, source.replace("{0}", name))
    site.install("third", "raise RuntimeError")
    hooks = load_plugins().hooks("request_received")
    assert [owner.plugin for owner, _ in hooks] == ["first", "second"]
    with pytest.raises(RequestFailedError, match="second saw r1"):
        hooks[1][1](request="r1")


def test_the_report_is_json_and_says_what_became_of_each(site):
    site.install("acme", OFFERS_APPLE)
    site.install("acme-two", OFFERS_APPLE)
    site.install("broken", RAISES_MIDWAY)
    reports = {r["name"]: r for r in json.loads(json.dumps(plugins_report(load("no:quire_demo"))))}
    assert reports["quire_demo"]["state"] == "blocked"
    assert reports["broken"]["error"] == "RuntimeError: midway"
    assert "traceback" not in reports["broken"]
    assert "file" not in reports["acme"]
    (offer,) = reports["acme"]["offers"]
    assert (offer["kind"], offer["name"], offer["is_contested"]) == ("lora_sources", "apple", True)
    assert offer["served_by"] is None
    steps = {offer["name"]: offer for offer in reports["quire_samplers"]["offers"]}
    (field,) = steps["min_p"]["capabilities"]["fields"]
    assert (field["name"], field["type"], field["maximum"]) == ("min_p", "number", 1.0)
    (field,) = steps["logit_bias"]["capabilities"]["fields"]
    assert (field["type"], field["maxProperties"]) == ("object", 1024)


def test_the_report_names_the_plugin_of_a_shared_name(site):
    site.install("acme", OFFERS_APPLE.replace("apple", "peft"))

    def offers(**settings):
        reports = {r["name"]: r["offers"] for r in plugins_report(load(**settings))}
        return [
            (offer["served_by"], offer["is_contested"])
            for name in ("acme", "quire_lora")
            for offer in reports[name]
        ]

    assert offers() == [("quire_lora", False)] * 2
    assert offers(prefer=("lora_sources:peft=acme",)) == [("acme", False)] * 2


def test_the_detailed_report_has_files_and_tracebacks(site):
    site.install("broken", RAISES_MIDWAY)
    report = plugins_report(load_plugins(), detailed=True)[-1]
    assert report["file"] == str(site.folder / "broken.py")
    assert "midway" in report["traceback"]


def test_hooks_are_known_in_the_order_of_firing():
    names = list(known_hooks())
    assert names[0] == "register_checkpoints"
    fired = ["request_received", "request_finished", "request_completed", "stats_logged"]
    assert names[-4:] == fired


def test_loading_all_plugins_loads_nothing_heavy():
    code = (
        "import sys; from quire.plugins.loading import load_plugins; load_plugins();"
        "print([n for n in ('torch', 'triton', 'transformers', 'outlines', 'peft', 'safetensors') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_plugin_that_imports_torch_when_it_is_loaded_is_noticed(site, monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    (site.folder / "triton.py").write_text("")
    site.install("acme", "import triton\n")
    assert record_of(load_plugins(), "acme").heavy_imports == ("triton",)


def test_a_plugin_that_was_left_out_is_none_that_failed():
    with pytest.raises(UnknownNameError) as caught:
        load("no:quire_demo").registries.samplers.entry("temperatur")
    assert "failed to load" not in str(caught.value)


def test_a_name_with_an_equals_sign_can_be_preferred(site):
    for name in ("acme", "other"):
        site.install(name, OFFERS_APPLE.replace("apple", "a=b"))
    plugins = load(prefer=("lora_sources:a=b=other",))
    assert plugins.registries.lora_sources.entry("a=b").source.plugin == "other"


def test_the_report_is_json_also_where_a_field_has_no_bounds(site):
    source = """
        from quire import hookimpl
        from quire.interfaces.sampling import RequestField, SamplerCapabilities

        @hookimpl
        def register_samplers(registry):
            there = SamplerCapabilities(stage="filter", fields=(RequestField("f", float, 0.0),))
            registry.add("acme", "json:JSONDecoder", capabilities=there)
    """
    site.install("acme", source)
    (report,) = [r for r in plugins_report(load()) if r["name"] == "acme"]
    json.dumps(report, allow_nan=False)
    (field,) = report["offers"][0]["capabilities"]["fields"]
    assert field == {"name": "f", "type": "number", "default": 0.0}


def test_a_heavy_import_is_reported_for_the_plugin_that_did_it(site, monkeypatch):
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    (site.folder / "triton.py").write_text("")
    site.install("acme", "import triton\n")
    site.install("bolt", "import triton\n")
    plugins = load_plugins()
    assert record_of(plugins, "acme").heavy_imports == ("triton",)
    assert record_of(plugins, "bolt").heavy_imports == ()


def test_a_distribution_without_plugins_may_be_installed_twice(site, tmp_path, monkeypatch):
    write_distribution(site.folder, "plain", {})
    other = write_distribution(tmp_path / "other", "plain", {}, "0.9")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other)])
    assert shadowed_distributions() == {}


def test_our_own_plugins_are_loaded_before_a_third_partys_of_an_earlier_name(site):
    site.install("aardvark", OFFERS_APPLE)
    names = [record.source.plugin for record in load(disable_plugin_autoload=False).records]
    assert names.index("aardvark") > names.index("quire_tool_parsers")
