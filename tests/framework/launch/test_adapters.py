"""An adapter is told by its content; a source that does not say what that is, is refused."""

import pytest
from installed import sites

from quire.config import Settings
from quire.errors import AdapterError
from quire.launch.adapters import find_adapters, resolve_adapter
from quire.launch.composing import compose_engine
from quire.outputs import LoRARequest
from quire.plugins import load_plugins
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)

SOURCE = """
    from pathlib import Path
    from quire import hookimpl
    from quire.interfaces.lora import LoRASource

    @hookimpl
    def register_lora_sources(registry):
        registry.add("acme", "acme_lora:Source")

    class Source(LoRASource):
        def resolve(self, name): return Path(name)
        def content_hash(self, folder): return HASH
        def read(self, folder, max_rank): raise NotImplementedError
"""


def composed(site, folder, content_hash):
    site.install("acme_lora", SOURCE.replace("HASH", content_hash))
    options = {"enable_lora": True, "lora_source": "acme", "lora_modules": ["one=files"]}
    model = str(write_checkpoint(folder / "m", "LlamaForCausalLM").folder)
    settings = Settings.from_options({"model": model} | options)
    return compose_engine(settings, load_plugins(settings.plugins))


def test_an_adapter_is_its_name_and_its_content(site, tmp_path):
    its = composed(site, tmp_path, "folder.name + ' v1'")
    found = find_adapters(its.settings, its.composition, its.plugins.registries)
    assert found["one"].content_hash == "files v1"


@pytest.mark.parametrize("content_hash", ["''", "None", "b'1'"])
def test_a_source_that_gives_no_content_hash_is_refused_by_name(site, tmp_path, content_hash):
    its = composed(site, tmp_path, content_hash)
    with pytest.raises(AdapterError, match=r"acme_lora\.Source gave .* content hash of .*'one'"):
        find_adapters(its.settings, its.composition, its.plugins.registries)
    wanted = LoRARequest("two", 1, "elsewhere")
    with pytest.raises(AdapterError, match=r"acme_lora\.Source gave .* content hash of .*'two'"):
        resolve_adapter(wanted, {}, its.composition, its.plugins.registries)
