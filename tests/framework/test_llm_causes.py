"""A plugin's error is the cause of the request's error, wherever the engine runs."""

import pytest
from adapter_files import write_adapter
from installed import sites

from quire import LLM, LoRARequest, SamplingParams
from quire.cli.main import main
from quire.errors import AdapterError, CauseError, PromptsError, RequestFailedError
from quire.testing.checkpoints import write_checkpoint

site = pytest.fixture(sites)

GREEDY = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
BROKEN = SamplingParams(seed=1, max_tokens=3, extra_args={"fragile": True})
FRAGILE = """
    from quire import hookimpl
    from quire.interfaces.sampling import LogitsProcessor, RequestField, SamplerCapabilities

    class Fragile(LogitsProcessor):
        def is_neutral(self, fields):
            return not fields["fragile"]

        def apply(self, logits, rows):
            if rows.slot_fields["fragile"][rows.slots].any():
                raise ValueError("made of glass")
            return logits

    @hookimpl
    def register_samplers(registry):
        field = RequestField("fragile", bool, False)
        there = SamplerCapabilities(stage="filter", fields=(field,))
        registry.add("fragile", "acme_fragile:Fragile", capabilities=there)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.mark.parametrize("engine_process", [False, True])
def test_one_failing_prompt_of_three_is_named_with_its_plugin_and_cause(
    site, folder, engine_process
):
    site.install("acme_fragile", FRAGILE)
    options = {"samplers": ["default", "fragile"], "engine_process": engine_process}
    with LLM(folder, max_model_len=64, **options) as llm:
        expected = llm.generate(["a", "c"], GREEDY)
        with pytest.raises(
            PromptsError, match=r"prompt 1: .*acme_fragile.*made of glass"
        ) as caught:
            llm.generate(["a", "b", "c"], [GREEDY, BROKEN, GREEDY])
        assert llm.stats().num_used_blocks == 0
    first, none, last = caught.value.outputs
    assert none is None
    assert [first.outputs, last.outputs] == [output.outputs for output in expected]
    error = caught.value.errors[1]
    assert type(error) is RequestFailedError
    assert type(error.__cause__) is CauseError
    assert "in apply" in str(error.__cause__)


def test_an_adapter_that_a_request_brings_is_refused_before_anything_runs(folder, tmp_path, caplog):
    good = LoRARequest("good", 1, str(write_adapter(tmp_path / "good")))
    other = write_adapter(tmp_path / "other", base_model_name_or_path="acme/other-model")
    torn = write_adapter(tmp_path / "torn")
    weights = torn / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with LLM(folder, max_model_len=64, enable_lora=True) as llm:
        adapters = [None, good, LoRARequest("torn", 2, str(torn))]
        before = llm.stats()
        with pytest.raises(PromptsError, match=r"prompt 2: .*safetensors is damaged") as caught:
            llm.generate(["a"] * 3, GREEDY, lora_request=adapters)
        assert isinstance(caught.value.errors[2], AdapterError)
        assert llm.stats() == before
        plain, changed = llm.generate(["a"] * 2, GREEDY, lora_request=adapters[:2])
        assert plain.outputs[0].token_ids != changed.outputs[0].token_ids
        assert not caplog.records
        llm.generate("a", GREEDY, lora_request=LoRARequest("other", 3, str(other)))
        assert "made for the base model 'acme/other-model'" in caplog.text


def test_a_strict_start_refuses_an_adapter_of_another_base(folder, tmp_path):
    other = write_adapter(tmp_path / "other", base_model_name_or_path="acme/other-model")
    with pytest.raises(AdapterError, match="made for the base model 'acme/other-model'"):
        LLM(folder, enable_lora=True, strict_adapters=True, lora_modules=[f"x={other}"])


def test_the_demos_own_adapters_are_its_own_in_every_mode(caplog):
    options = {"enable_lora": True, "strict_adapters": True, "batch_invariant": True}
    with LLM("demo", **options) as llm:
        assert llm.adapters == ["formal", "pirate"]
    assert "made for" not in caplog.text


SOURCE = """
    from pathlib import Path
    from quire import hookimpl
    from quire.interfaces.lora import LoRASource

    class Shelf(LoRASource):
        def resolve(self, name):
            return Path(name)

        def content_hash(self, folder):
            return "v1"

        def read(self, folder, max_rank):
            raise OSError("the shelf fell over")

    @hookimpl
    def register_lora_sources(registry):
        registry.add("shelf", "acme_shelf:Shelf")
"""


@pytest.mark.parametrize("engine_process", ["--engine-process", "--no-engine-process"])
def test_a_source_that_fails_at_start_up_is_one_line_with_what_it_raised(
    site, folder, capsys, engine_process
):
    site.install("acme_shelf", SOURCE)
    argv = ["run", folder, "hi", "--enable-lora", "--lora-source", "shelf", "--lora-modules", "x=y"]
    assert main([*argv, engine_process]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "LoRA source 'shelf' of plugin acme_shelf" in last
    assert "failed to read adapter 'y': OSError" in last
    assert last.endswith("the shelf fell over) [adapter_source_failed]")


BUILT = """
    from quire_lora.peft_source import PeftSource

    class Shelf(PeftSource):
        @classmethod
        def from_options(cls, options):
            print("built")
            return cls()
"""


def test_a_source_is_built_at_start_up_and_not_for_each_request(site, folder, tmp_path, capsys):
    site.install("acme_shelf", SOURCE.replace("class Shelf", "class Other") + BUILT)
    first, second = (str(write_adapter(tmp_path / name)) for name in "ab")
    with LLM(folder, max_model_len=64, enable_lora=True, lora_source="shelf") as llm:
        assert "built" in capsys.readouterr().out
        for index, path in enumerate([first, second]):
            llm.generate("a", GREEDY, lora_request=LoRARequest(path, index + 1, path))
    assert "built" not in capsys.readouterr().out


def test_a_corrupt_adapter_at_start_up_is_one_line(folder, tmp_path, capsys):
    torn = write_adapter(tmp_path / "torn")
    (torn / "adapter_model.safetensors").write_bytes(b"\0" * 20)
    argv = ["run", folder, "hi", "--enable-lora", "--lora-modules", f"x={torn}"]
    assert main(argv) != 0
    lines = capsys.readouterr().err.strip().splitlines()
    assert "Traceback" not in "".join(lines)
    assert str(torn / "adapter_model.safetensors") in lines[-1]
    assert "is damaged" in lines[-1]
    assert lines[-1].endswith("[adapter_error]")
