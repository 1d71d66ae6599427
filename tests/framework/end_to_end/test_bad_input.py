"""What a person sees when something is wrong, at the front door; and nothing else breaks."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import save_file

from quire import LLM, SamplingParams, StructuredOutputsParams
from quire.cli.main import main
from quire.errors import (
    AdapterError,
    CapacityError,
    CheckpointCorruptError,
    CheckpointNotFoundError,
    GrammarError,
    InvalidRequestError,
    PromptsError,
    PromptTooLongError,
    RefusedError,
    RequestError,
    SettingsError,
    UnknownModelError,
    UnknownNameError,
    UnsafeCheckpointError,
    UnsupportedModelError,
)
from quire.testing.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), max_model_len=64, enable_lora=True) as llm:
        yield llm


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


# --- checkpoints --------------------------------------------------------------------------------


def test_a_missing_folder_is_named():
    with pytest.raises(CheckpointNotFoundError, match=r"no such model folder: \./nowhere"):
        LLM("./nowhere")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(CheckpointNotFoundError, match=r"'demoo'; did you mean 'demo'\?"):
        LLM("demoo")


def test_a_folder_without_a_config_is_incomplete(copy):
    (copy / "config.json").unlink()
    with pytest.raises(CheckpointCorruptError, match=r"no config\.json; is the folder complete"):
        LLM(str(copy))


def test_an_incomplete_copy_of_a_model_names_what_is_missing(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", num_shards=3).folder
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointCorruptError, match=shard.name):
        LLM(str(folder))


def test_a_truncated_file_is_named(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors"):
        LLM(str(copy))


def test_a_corrupt_header_is_not_believed(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes((2**62).to_bytes(8, "little") + weights.read_bytes()[8:])
    with pytest.raises(CheckpointCorruptError, match=r"model\.safetensors"):
        LLM(str(copy))


def test_a_pickle_is_refused_and_never_opened(copy):
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"not even a pickle")
    with pytest.raises(UnsafeCheckpointError, match=r"pytorch_model\.bin"):
        LLM(str(copy))


def test_an_unknown_architecture_names_the_nearest_and_how_to_add_it(copy):
    config = json.loads((copy / "config.json").read_text())
    config["architectures"] = ["Qwen33ForCausalLM"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="did you mean 'Qwen3ForCausalLM'") as caught:
        LLM(str(copy))
    assert "register_models" in str(caught.value)


def test_a_checkpoint_with_wrong_shapes_names_the_tensor(copy):
    config = json.loads((copy / "config.json").read_text())
    config["intermediate_size"] += 8
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointCorruptError, match=r"mlp\.\w+_proj\.weight"):
        LLM(str(copy))


@pytest.mark.parametrize("key", ["intermediate_size", "vocab_size"])
def test_a_wrong_size_that_fits_no_memory_is_told_as_wrong(copy, key):
    config = json.loads((copy / "config.json").read_text())
    given, config[key] = config[key], 2_000_000_000
    (copy / "config.json").write_text(json.dumps(config))
    reason = f"{key} is 2000000000, and the tensors have {given}"
    with pytest.raises(CheckpointCorruptError, match=reason):
        LLM(str(copy))


# --- names and settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "title"),
    [
        ("attention_backend", "attention backend"),
        ("structured_output", "structured-output backend"),
        ("tool_call_parser", "tool-call parser"),
        ("reasoning_parser", "reasoning parser"),
        ("executor", "executor"),
    ],
)
def test_an_unknown_plugin_name_lists_the_known_ones(folder, option, title):
    with pytest.raises(UnknownNameError, match=rf"unknown {title} 'nonesuch'.*\(known: \w+"):
        LLM(str(folder), **{option: "nonesuch"})


def test_an_unknown_sampler_and_lora_source_list_the_known_ones(folder):
    with pytest.raises(UnknownNameError, match=r"unknown sampler 'min_q'; did you mean 'min_p'"):
        LLM(str(folder), samplers=("default", "min_q"))
    with pytest.raises(UnknownNameError, match=r"unknown LoRA source 'peff'; did you mean 'peft'"):
        LLM(str(folder), enable_lora=True, lora_source="peff")


GRIDS = [
    ({"tensor_parallel_size": 0}, r"tensor_parallel_size must be at least 1, got 0"),
    ({"tensor_parallel_size": 3}, r"3 does not divide .* 4 attention heads; .*: 1, 2, 4"),
    ({"tensor_parallel_size": 8}, r"8 does not divide .* 4 attention heads; .*: 1, 2, 4"),
    ({"pipeline_parallel_size": 0}, r"pipeline_parallel_size must be at least 1, got 0"),
    ({"pipeline_parallel_size": 4}, r"4 is more than the model's 3 layers; set it to at most 3"),
    (
        {"pipeline_parallel_size": 2, "pipeline_layers": (1, 1)},
        r"1,1 adds up to 2, and the model has 3 layers; the last number must be 2",
    ),
    (
        {"tensor_parallel_size": 2, "executor": "in_process"},
        r"'in_process' supports a tensor_parallel_size of at most 1, and 2 is set; .* processes,",
    ),
    (
        {"pipeline_parallel_size": 2, "executor": "in_process"},
        r"'in_process' supports a pipeline_parallel_size of at most 1, and 2 is set; .* processes,",
    ),
    (
        {"tensor_parallel_size": 2, "executor": "proceses"},
        r"unknown executor 'proceses'; did you mean 'processes'\? \(known: in_process, .*auto\)",
    ),
]


@pytest.mark.parametrize(("options", "text"), GRIDS)
def test_a_grid_that_cannot_work_names_one_that_does(folder, options, text):
    with pytest.raises((SettingsError, RefusedError, UnknownNameError), match=text):
        LLM(str(folder), **options)


@pytest.mark.parametrize("command", ["serve", "explain"])
@pytest.mark.parametrize(("options", "text"), GRIDS)
def test_the_commands_say_so_too(folder, capsys, command, options, text):
    arguments = [command, str(folder)]
    for name, value in options.items():
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        arguments += [f"--{name.replace('_', '-')}", shown]
    is_usage = "must be at least" in text  # one option alone is wrong, whatever the model is
    assert main(arguments) == (2 if is_usage else 1)
    assert re.search(text, capsys.readouterr().err)


def test_an_option_that_does_not_exist_names_the_nearest():
    with pytest.raises(SettingsError, match="no option 'max_num_seq'; did you mean 'max_num_seqs'"):
        LLM("demo", max_num_seq=4)


def test_a_length_beyond_the_model_is_refused(folder):
    with pytest.raises(SettingsError, match=r"max_model_len is 100000, .* maximum length is 512"):
        LLM(str(folder), max_model_len=100_000)


# --- requests: each is refused, and the engine goes on ------------------------------------------


@pytest.fixture(autouse=True)
def the_engine_goes_on(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert len(llm.generate("still here", GREEDY)[0].outputs[0].token_ids) > 0
        assert llm.stats().num_used_blocks == 0


def test_a_prompt_longer_than_the_model_is_refused_with_both_numbers(llm):
    with pytest.raises(PromptTooLongError, match=r"70 tokens .* takes 64 tokens"):
        llm.generate([5] * 70, GREEDY)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(llm, prompt):
    with pytest.raises(PromptsError, match="prompt 1: ") as caught:
        llm.generate(["x", prompt], GREEDY)
    assert isinstance(caught.value.errors[1], InvalidRequestError)


@pytest.mark.parametrize("prompt", [[-1], [10**9], [True], [2.5]])
def test_token_ids_that_do_not_exist_are_refused(llm, prompt):
    with pytest.raises(PromptsError, match=r"prompt 0: .*whole numbers from 0 to 319"):
        llm.generate([prompt], GREEDY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("top_p", 0.0), ("top_p", 1.5),
        ("top_k", -2), ("min_p", 2.0), ("max_tokens", 0), ("n", 0), ("n", 10**6),
        ("logprobs", -2), ("seed", 2**63), ("min_tokens", -1), ("stop", ("",)),
    ],
)  # fmt: skip
def test_numbers_out_of_range_name_their_field(field, value):
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_a_field_that_no_sampler_declares_is_refused(llm):
    with pytest.raises(InvalidRequestError, match="no request field 'top_n'"):
        llm.generate("x", SamplingParams(extra_args={"top_n": 1}))


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"json": {"type": "integer", "divisibleBy": 3}}, "divisibleBy"),
        ({"json": {"minProperties": 3}}, "minProperties"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "minLength"),
        ({"json": "{not json"}, "JSON"),
        ({"regex": "(unclosed"}, "regex"),
        ({"choice": ()}, "choice"),
        (
            {"grammar": "start: x"},
            "outlines: the outlines backend does not support context-free",
        ),
    ],
)
def test_an_impossible_form_is_refused_by_name(llm, form, message):
    params = SamplingParams(structured_outputs=StructuredOutputsParams(**form))
    with pytest.raises(GrammarError, match=message):
        llm.generate("x", params)


def test_two_forms_at_once_are_refused():
    with pytest.raises(InvalidRequestError, match="exactly one of"):
        StructuredOutputsParams(regex="a", choice=("a",))


# --- adapters -----------------------------------------------------------------------------------


def write_adapter(folder, in_features=64, module="self_attn.q_proj", **config):
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    stem = f"base_model.model.model.layers.0.{module}"
    matrices = {
        f"{stem}.lora_A.weight": torch.ones(2, in_features),
        f"{stem}.lora_B.weight": torch.ones(64, 2),
    }
    save_file(matrices, folder / "adapter_model.safetensors")
    return folder


def test_an_adapter_of_another_base_names_the_module_and_the_shapes(folder, tmp_path):
    adapter = write_adapter(tmp_path / "other", in_features=48)
    with pytest.raises(AdapterError, match=r"q_proj.*\[2, 48\]"):
        LLM(str(folder), enable_lora=True, lora_modules=(f"other={adapter}",))


def test_an_adapter_for_a_module_that_is_not_there_is_refused(folder, tmp_path):
    adapter = write_adapter(tmp_path / "strange", module="self_attn.z_proj")
    with pytest.raises(AdapterError, match="z_proj"):
        LLM(str(folder), enable_lora=True, lora_modules=(f"strange={adapter}",))


@pytest.mark.parametrize(
    ("config", "message"),
    [({"use_dora": True}, "use_dora"), ({"modules_to_save": ["lm_head"]}, "modules_to_save")],
)
def test_what_an_adapter_cannot_have_is_refused_by_name(folder, tmp_path, config, message):
    adapter = write_adapter(tmp_path / "a", **config)
    with pytest.raises(AdapterError, match=message):
        LLM(str(folder), enable_lora=True, lora_modules=(f"a={adapter}",))


def test_an_adapter_that_is_not_offered_is_refused(llm):
    with pytest.raises(UnknownModelError, match="no adapter 'nobody'"):
        llm.generate("x", GREEDY, lora_request="nobody")


def test_every_request_error_is_one(llm):
    with pytest.raises(RequestError):
        llm.generate("x", GREEDY, lora_request="nobody")


def test_a_cache_that_is_too_small_for_the_model_shortens_it_or_names_the_size_that_fits(folder):
    with LLM(str(folder), num_kv_blocks=9) as llm:  # eight usable blocks of 16 tokens
        assert llm.max_model_len == llm.composition.max_model_len == 129
        assert len(llm.generate("x" * 20, SamplingParams(max_tokens=None))[0].outputs) == 1
    with pytest.raises(CapacityError, match=r"200 tokens .* 8 blocks .* at most 129"):
        LLM(str(folder), num_kv_blocks=9, max_model_len=200)


def test_a_grammar_comes_before_min_tokens(llm):
    form = StructuredOutputsParams(choice=("yes", "no"))
    params = SamplingParams(temperature=0, max_tokens=30, min_tokens=20, structured_outputs=form)
    completion = llm.generate("x", params)[0].outputs[0]
    assert completion.text in ("yes", "no")
    assert completion.finish_reason == "stop"
