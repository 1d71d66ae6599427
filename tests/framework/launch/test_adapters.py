"""Adapters are identified by their content hash; a source without one is refused."""

from pathlib import Path

import pytest
from installed import sites

from quire.compose.choices.lora_choice import load_sources
from quire.config import Settings
from quire.errors import (
    AdapterError,
    AdapterSourceError,
    PluginLoadError,
    RequestFailedError,
    SettingsError,
    UnknownModelError,
)
from quire.frontend.dispatch.engine_client import error_of
from quire.launch.adapters import find_adapters, resolve_adapter
from quire.launch.composing import compose_engine
from quire.messages import AdapterRef
from quire.outputs import LoRARequest
from quire.plugins.loading import load_plugins
from quire.process.error_message import ErrorMessage
from quire.process.ipc import decode, encode
from quire.process.traceback_text import with_cause
from quire.testing.checkpoints import write_checkpoint
from quire.worker.batch.step_results import failure

site = pytest.fixture(sites)

SOURCE = """
    from pathlib import Path
    from quire import hookimpl
    from quire.errors import AdapterError, SettingsError
    from quire.interfaces.lora import LoRASource

    @hookimpl
    def register_lora_sources(registry):
        registry.add("acme", "acme_lora:Source")

    class Source(LoRASource):
        def resolve(self, name): return RESOLVED
        def content_hash(self, folder): return HASH
        def read(self, folder, max_rank): READ
"""
OPTIONS = """
    class Source(Source):
        def __init__(self, tag): self.tag = tag
        def content_hash(self, folder): return f"{folder.name} {self.tag}"
        @classmethod
        def from_options(cls, options):
            if set(options) != {"tag"}:
                raise SettingsError(f"acme has the option tag, got {sorted(options)}")
            return cls(options["tag"])
"""


def composed(
    site, folder, content_hash="'v1'", resolved="Path(name)", read="pass", source="", **options
):
    text = SOURCE.replace("HASH", content_hash).replace("RESOLVED", resolved) + source
    site.install("acme_lora", text.replace("READ", read))
    options = {"enable_lora": True, "lora_source": "acme", "lora_modules": ["one=files"]} | options
    if "model" not in options:
        options["model"] = str(write_checkpoint(folder / "m", "LlamaForCausalLM").folder)
    settings = Settings.from_options(options)
    return compose_engine(settings, load_plugins(settings.plugins))


def sources_of(its):
    return load_sources(its.settings.lora, its.composition, its.plugins.registries)


def found(its):
    return find_adapters(its.settings, its.composition, sources_of(its))


def resolved(its, wanted, offered=()):
    return resolve_adapter(wanted, dict(offered), its.composition, sources_of(its))


def test_an_adapter_is_its_name_and_its_content(site, tmp_path):
    its = composed(site, tmp_path, "folder.name + ' v1'")
    one = AdapterRef("one", "files", "files v1", "acme")
    assert found(its) == {"one": one}
    assert resolved(its, "one", {"one": one}) is one
    assert resolved(its, LoRARequest("b", 1, "x/y")) == AdapterRef("b", "x/y", "y v1", "acme")


def test_an_adapter_that_is_not_offered_names_those_that_are(site, tmp_path):
    its = composed(site, tmp_path)
    with pytest.raises(UnknownModelError, match=r"'two' \(known: one\)"):
        resolved(its, "two", found(its))
    with pytest.raises(UnknownModelError, match="none; start with enable_lora"):
        resolved(its, "two")


def test_without_lora_nothing_is_offered(site):
    its = composed(site, None, model="demo", enable_lora=False, lora_modules=[])
    assert found(its) == {}
    assert its.composition.lora_source is its.composition.shipped_lora_source is None
    with pytest.raises(UnknownModelError, match="LoRA is off"):
        resolved(its, LoRARequest("b", 1, "x"))


def test_the_checkpoints_own_adapters_go_to_the_source_that_knows_their_layout(site):
    modules = ["pirate", "other", "formal=mine"]
    its = composed(site, None, "folder.name", model="demo", lora_modules=modules)
    refs = found(its)
    assert {name: ref.source for name, ref in refs.items()} == {
        "formal": "acme", "pirate": "peft", "other": "acme"
    }  # fmt: skip
    assert refs["other"].path == "other", "a name that the checkpoint does not know is the source's"
    assert refs["formal"].path == "mine"
    assert Path(refs["pirate"].path) == its.composition.checkpoint.adapters["pirate"]
    assert len(refs["pirate"].content_hash) == 64
    roles = {choice.role: choice.name for choice in its.composition.choices}
    assert (roles["LoRA source"], roles["LoRA source (shipped)"]) == ("acme", "peft")


def test_with_the_default_source_there_is_no_other(site):
    its = composed(site, None, model="demo", lora_source="peft", lora_modules=["pirate"])
    assert {ref.source for ref in found(its).values()} == {"peft"}
    assert its.composition.shipped_lora_source is None


def test_without_a_source_for_them_the_checkpoints_own_are_not_offered_with_a_warning(site, caplog):
    its = composed(site, None, model="demo", plugins=["no:quire_lora"])
    assert list(found(its)) == ["one"]
    (record,) = [r for r in caplog.records if "not served" in r.getMessage()]
    assert "(formal, pirate)" in record.getMessage()


def test_a_source_gets_its_options_and_says_what_is_wrong_with_them(site, tmp_path):
    given = {"lora_source_options": {"tag": "t7"}}
    its = composed(site, tmp_path, source=OPTIONS, **given)
    assert found(its)["one"].content_hash == "files t7"
    assert resolved(its, LoRARequest("b", 1, "x")).content_hash == "x t7"


def test_the_options_of_a_source_are_not_for_the_checkpoints_own(site):
    given = {"model": "demo", "lora_source_options": {"tag": "t7"}}
    refs = found(composed(site, None, source=OPTIONS, **given))
    assert refs["one"].content_hash == "files t7"
    assert refs["pirate"].source == "peft"


@pytest.mark.parametrize("given", [{}, {"tog": "1"}])
def test_options_that_a_source_does_not_take_are_refused(site, tmp_path, given):
    its = composed(site, tmp_path, source=OPTIONS, lora_source_options=given)
    with pytest.raises(SettingsError, match=r"^LoRA source 'acme' of .* acme has the option tag"):
        found(its)


def test_a_source_that_cannot_be_built_names_its_plugin(site, tmp_path):
    its = composed(site, tmp_path, source=OPTIONS.replace("cls(options", "cls(tog=options"),
                   lora_source_options={"tag": "t"})  # fmt: skip
    with pytest.raises(
        PluginLoadError, match=r"^LoRA source 'acme' of plugin acme_lora.* built: T"
    ):
        found(its)


def test_a_source_without_options_takes_none(site, tmp_path):
    its = composed(site, tmp_path, lora_source_options=["colour=red"])
    message = r"^LoRA source .*\.Source has no options, but .* colour"
    with pytest.raises(SettingsError, match=message):
        found(its)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"resolved": "1 / 0"}, r"failed to find adapter 'files': ZeroDivisionError$"),
        ({"resolved": "'files'"}, r"returned a str as the folder of adapter 'files'$"),
        ({"content_hash": "[][0]"}, r"failed to hash adapter 'files': IndexError$"),
    ],
)
def test_a_failure_of_a_source_names_its_plugin(site, tmp_path, wrong, words):
    its = composed(site, tmp_path, **wrong)
    with pytest.raises(
        AdapterSourceError, match=r"^LoRA source 'acme' of plugin acme_lora.* " + words
    ):
        found(its)


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ("raise OSError('torn')", r"failed to read adapter 'files': OSError$"),
        ("return None", "read None, not an Adapter$"),
    ],
)
def test_what_a_source_reads_is_an_adapter_or_names_its_plugin(site, tmp_path, read, words):
    its = composed(site, tmp_path, read=read)
    source = sources_of(its)["acme"]
    with pytest.raises(
        AdapterSourceError, match=r"^LoRA source 'acme' of plugin acme_lora.* " + words
    ):
        source.read(Path("files"), 8)


def test_what_a_source_raised_is_the_cause_and_not_what_a_client_may_read(site, tmp_path):
    its = composed(site, tmp_path, read="raise OSError('torn')")
    source = sources_of(its)["acme"]
    with pytest.raises(AdapterSourceError) as caught:
        source.read(Path("files"), 8)
    assert str(caught.value.__cause__) == "torn"
    assert type(error_of(failure("loading", caught.value))) is RequestFailedError
    received = decode(encode(ErrorMessage.of(caught.value)), ErrorMessage).error()
    assert type(received) is AdapterSourceError
    for error in (caught.value, received):
        assert with_cause(error).startswith(str(error) + " (")
        assert with_cause(error).endswith("torn)")


def test_what_a_source_says_on_purpose_stays_behind_its_name(site, tmp_path):
    its = composed(site, tmp_path, read="raise AdapterError('it is torn')")
    source = sources_of(its)["acme"]
    with pytest.raises(AdapterError, match=r"^LoRA source 'acme' of [^:]*: it is torn$"):
        source.read(Path("files"), 8)


@pytest.mark.parametrize("content_hash", ["''", "None", "b'1'"])
def test_a_source_that_gives_no_content_hash_is_refused_by_name(site, tmp_path, content_hash):
    its = composed(site, tmp_path, content_hash)
    with pytest.raises(
        AdapterError, match=r"plugin acme_lora.* returned .* content hash of .*'one'"
    ):
        found(its)
    with pytest.raises(
        AdapterError, match=r"plugin acme_lora.* returned .* content hash of .*'two'"
    ):
        resolved(its, LoRARequest("two", 1, "elsewhere"))
