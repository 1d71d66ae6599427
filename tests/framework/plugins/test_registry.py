import sys

import pytest

from quire.errors import (
    ApiVersionError,
    ContestedNameError,
    PluginError,
    PluginLoadError,
    UnknownNameError,
)
from quire.interfaces.sampling import SamplerCapabilities, SamplerStep
from quire.plugins.registry import Kind, Registrar, Registry, Source

FRUIT = Kind("fruits", "fruit", api=3)
ONE = Source("one", "dist-one", "1.0")
TWO = Source("two", "dist-two", "2.0")


def offered(source, *names, kind=FRUIT, reference="json:loads", **options):
    registrar = Registrar(kind, source)
    for name in names:
        registrar.add(name, reference, **options)
    return registrar.entries


def registry_of(*groups, kind=FRUIT):
    registry = Registry(kind)
    for entries in groups:
        registry.accept(entries)
    return registry


def test_a_name_gives_the_code_behind_it():
    import json

    registry = registry_of(offered(ONE, "apple", api=3))
    assert registry.get("apple") is json.loads


def test_nothing_is_imported_before_a_name_is_selected(monkeypatch):
    monkeypatch.delitem(sys.modules, "this", raising=False)
    registry = registry_of(offered(ONE, "apple", reference="antigravity:fly", api=3))
    assert registry.entry("apple").reference == "antigravity:fly"
    assert "antigravity" not in sys.modules


def test_an_entry_says_where_it_comes_from():
    assert str(registry_of(offered(ONE, "apple")).entry("apple").source) == "one (dist-one 1.0)"


def test_an_unknown_name_is_refused_with_the_nearest_and_all_known_ones():
    registry = registry_of(offered(ONE, "flash", "sdpa"))
    with pytest.raises(UnknownNameError) as caught:
        registry.get("flsh")
    message = str(caught.value)
    assert message == "unknown fruit 'flsh'; did you mean 'flash'? (known: flash, sdpa)"


def test_many_names_are_counted_so_that_the_rest_of_the_message_can_be_found():
    names = [f"fruit_{number}" for number in range(31)]
    with pytest.raises(UnknownNameError) as caught:
        registry_of(offered(ONE, *names)).get("fruit_99")
    assert "did you mean 'fruit_" in str(caught.value)
    assert "(known: 31 names, see `quire plugins list`)" in str(caught.value)


def test_the_nearest_name_is_found_in_any_case():
    registry = registry_of(offered(ONE, "LlamaForCausalLM"))
    with pytest.raises(UnknownNameError, match="did you mean 'LlamaForCausalLM'"):
        registry.get("LLAMAFORCAUSALLM")


def test_the_nearest_name_is_found_in_any_case_of_its_own():
    with pytest.raises(UnknownNameError, match="did you mean 'FLASH'"):
        registry_of(offered(ONE, "FLASH")).get("flash")


def test_nothing_is_suggested_when_nothing_is_near():
    with pytest.raises(UnknownNameError) as caught:
        registry_of(offered(ONE, "flash")).get("zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("lamaForCausalLM", "LlamaForCausalLM"),
        ("LlamaForCausalLMM", "LlamaForCausalLM"),
        ("BartModel", "BertModel"),
        ("ZorkForCausalLM", None),
        ("ZorkModel", None),
    ],
)
def test_the_words_that_end_all_names_make_none_similar(wrong, meant):
    names = ("LlamaForCausalLM", "OPTForCausalLM", "GPT2LMHeadModel", "BertModel")
    with pytest.raises(UnknownNameError) as caught:
        registry_of(offered(ONE, *names)).get(wrong)
    found = str(caught.value).partition("did you mean ")[2].partition("?")[0]
    assert found == (repr(meant) if meant else "")


def test_an_empty_registry_says_that_it_knows_none():
    with pytest.raises(UnknownNameError, match=r"\(known: none\)$"):
        registry_of().get("apple")


@pytest.mark.parametrize(("number", "words"), [(1, "1 plugin failed"), (2, "2 plugins failed")])
def test_an_unknown_name_mentions_plugins_that_failed_to_load(number, words):
    registry = registry_of()
    registry.num_failed_plugins = number
    with pytest.raises(UnknownNameError, match=f"{words} to load, see `quire plugins doctor`"):
        registry.get("apple")


def test_a_name_of_two_plugins_is_contested_and_names_both_and_the_way_out():
    registry = registry_of(offered(ONE, "apple", "pear"), offered(TWO, "apple"))
    with pytest.raises(ContestedNameError) as caught:
        registry.get("apple")
    message = str(caught.value)
    assert "one (dist-one 1.0) and two (dist-two 2.0)" in message
    assert "--prefer fruits:apple=one or --prefer fruits:apple=two" in message
    assert list(registry.contested()) == ["apple"]


OURS = Source("any_plugin", "quire", "0.1.0")
FORGED = Source("quire_fruits", "dist-forged", "0.1.0")


@pytest.mark.parametrize("position", [0, 1, 2])
def test_quires_own_part_serves_a_shared_name_in_any_order(position):
    groups = [offered(ONE, "apple"), offered(FORGED, "apple")]
    groups.insert(position, offered(OURS, "apple", "pear", api=3))
    registry = registry_of(*groups)
    entry = registry.entry("apple")
    assert (entry.source, entry.passed_over) == (OURS, (ONE, FORGED))
    assert registry.uncontested("apple") == entry
    assert registry.contested() == {}
    assert registry.entry("pear").passed_over == ()
    assert registry.get("apple")


def test_an_entry_tells_the_option_that_prefers_another():
    entry = registry_of(offered(OURS, "apple"), offered(ONE, "apple")).entry("apple")
    assert entry.preference(ONE) == "--prefer fruits:apple=one"
    assert (
        registry_of(offered(OURS, "apple")).entry("apple").preference(OURS).endswith("=any_plugin")
    )


def test_the_users_preference_goes_before_quires_own():
    registry = registry_of(offered(OURS, "apple"), offered(ONE, "apple"))
    registry.prefer("apple", "one")
    assert (registry.entry("apple").source, registry.entry("apple").passed_over) == (ONE, ())
    registry.prefer("apple", "any_plugin")
    assert (registry.entry("apple").source, registry.entry("apple").passed_over) == (OURS, ())


def test_a_name_contested_by_third_parties_is_not_served():
    registry = registry_of(offered(ONE, "apple"), offered(FORGED, "apple", "pear"))
    assert registry.uncontested("apple") is None
    assert [e.source for e in registry.contested()["apple"]] == [ONE, FORGED]
    assert registry.uncontested("pear").source == FORGED


def test_only_the_distribution_makes_a_part_quires_own():
    assert OURS.is_ours
    assert not FORGED.is_ours
    assert not Source("quire", "quire-extras", "0.1.0").is_ours


def test_a_preference_may_name_the_distribution_or_the_entry_point():
    shared = Source("fruits@dist-shared", "dist-shared", "1.0")
    for plugin in ("fruits", "dist-shared", "fruits@dist-shared"):
        registry = registry_of(offered(ONE, "apple"), offered(shared, "apple"))
        registry.prefer("apple", plugin)
        assert registry.entry("apple").source == shared


def test_a_preference_that_two_plugins_could_mean_is_refused_with_both():
    first = Source("fruits@first", "first", "1.0")
    second = Source("fruits@second", "second", "1.0")
    registry = registry_of(offered(first, "apple"), offered(second, "apple"))
    with pytest.raises(ContestedNameError) as caught:
        registry.prefer("apple", "fruits")
    message = str(caught.value)
    assert "'fruits' matches fruits@first (first 1.0) and fruits@second (second 1.0)" in message
    assert "--prefer fruits:apple=fruits@second" in message


def test_a_plugins_own_name_counts_before_what_else_it_may_be_called():
    plain, other = Source("fruits", "quire", "0.1"), Source("fruits@other", "other", "1.0")
    registry = registry_of(offered(plain, "apple"), offered(other, "apple"))
    registry.prefer("apple", "fruits")
    assert registry.entry("apple").source == plain


def test_a_contested_name_hurts_no_other_name():
    registry = registry_of(offered(ONE, "apple", "pear", api=3), offered(TWO, "apple"))
    assert callable(registry.get("pear"))


def test_the_users_preference_decides_a_contested_name():
    registry = registry_of(offered(ONE, "apple"), offered(TWO, "apple"))
    registry.prefer("apple", "two")
    assert registry.entry("apple").source == TWO
    assert not registry.contested()


def test_a_preference_for_a_plugin_without_the_name_is_refused_with_those_that_have_it():
    registry = registry_of(offered(ONE, "apple"))
    with pytest.raises(
        UnknownNameError, match=r"'two' offers no fruit named 'apple'; it is offered by"
    ):
        registry.prefer("apple", "two")


def test_a_preference_for_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="unknown fruit 'appel'; did you mean 'apple'"):
        registry_of(offered(ONE, "apple")).prefer("appel", "one")


@pytest.mark.parametrize("api", [2, 3])
def test_this_version_of_an_interface_and_the_one_before_are_served(api):
    assert callable(registry_of(offered(ONE, "apple", api=api)).get("apple"))


@pytest.mark.parametrize(
    ("api", "remedy"), [(1, "upgrade dist-one$"), (4, "upgrade quire$"), (9, "upgrade quire$")]
)
def test_another_version_is_refused_before_anything_is_imported(api, remedy):
    registry = registry_of(offered(ONE, "apple", api=api, reference="no.such.module:thing"))
    with pytest.raises(ApiVersionError, match=remedy) as caught:
        registry.get("apple")
    assert f"has interface version {api}" in str(caught.value)
    assert "supports 2 and 3" in str(caught.value)


def test_the_first_version_of_a_kind_has_none_before_it():
    assert list(Kind("x", "x").apis) == [1]


def test_a_version_before_the_oldest_one_is_not_served():
    assert list(Kind("x", "x", api=2, oldest_api=2).apis) == [2]


def test_a_module_that_does_not_exist_is_named_with_its_plugin():
    registry = registry_of(offered(ONE, "apple", api=3, reference="no_such_module:thing"))
    with pytest.raises(PluginLoadError) as caught:
        registry.get("apple")
    message = str(caught.value)
    assert "fruit 'apple' of one (dist-one 1.0)" in message
    assert "No module named 'no_such_module'" in message
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_an_attribute_that_does_not_exist_is_named():
    registry = registry_of(offered(ONE, "apple", api=3, reference="json:lods"))
    with pytest.raises(PluginLoadError, match=r"AttributeError.*lods"):
        registry.get("apple")


def test_code_that_is_no_subclass_of_the_interface_is_refused():
    kind = Kind("samplers", "sampler", interface=SamplerStep)
    registry = registry_of(
        offered(ONE, "apple", kind=kind, reference="json:JSONDecoder"), kind=kind
    )
    with pytest.raises(PluginLoadError, match=r"json:JSONDecoder is not a subclass of quire"):
        registry.get("apple")


def test_where_a_function_is_wanted_a_number_is_refused():
    registry = registry_of(offered(ONE, "apple", api=3, reference="sys:maxsize"))
    with pytest.raises(PluginLoadError, match="must be a function, but it is of type int"):
        registry.get("apple")


def test_a_name_may_be_added_only_once_by_a_plugin():
    with pytest.raises(PluginError, match=r"fruit 'apple' is added twice by one"):
        offered(ONE, "apple", "apple")


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_must_be_text(name):
    with pytest.raises(PluginError, match="needs a name"):
        offered(ONE, name)


@pytest.mark.parametrize(
    "reference", ["", "json", "json:", ":loads", "json.loads", "my-pkg:x", "a b:c", "a:b:c", None]
)
def test_a_reference_that_cannot_be_imported_is_refused_when_it_is_added(reference):
    with pytest.raises(PluginError, match=r"must read 'package.module:attribute', got"):
        offered(ONE, "apple", reference=reference)


@pytest.mark.parametrize("api", [0, -1, "1", 1.0, True, None])
def test_an_interface_version_is_a_whole_number(api):
    with pytest.raises(PluginError, match="api must be a whole number from 1"):
        offered(ONE, "apple", api=api)


def test_capabilities_of_the_wrong_type_are_refused_with_the_right_type():
    kind = Kind("samplers", "sampler", capabilities=SamplerCapabilities)
    for wrong in (None, {"stage": "filter"}, SamplerCapabilities):
        with pytest.raises(PluginError, match=r"capabilities=SamplerCapabilities\(...\), got "):
            offered(ONE, "apple", kind=kind, capabilities=wrong)


def test_a_stage_that_does_not_exist_is_refused_at_registration():
    with pytest.raises(PluginError, match="stage must be one of penalty, bias"):
        SamplerCapabilities(stage="filters")


def test_a_registry_lists_its_names_in_order():
    registry = registry_of(offered(ONE, "pear", "apple"), offered(TWO, "apple"))
    assert list(registry) == ["apple", "pear"]
    assert len(registry) == 2
    assert "pear" in registry
    assert [(e.name, e.source.plugin) for e in registry.offers()] == [
        ("apple", "one"),
        ("apple", "two"),
        ("pear", "one"),
    ]
