"""The text model of every model with media towers against the whole model in transformers."""

from math import prod
from pathlib import Path

import pytest
import torch
from adapter_parts import adapted, save_adapter
from family_checkpoints import scene_of
from media_cases import MEDIA_CASES
from media_checkpoints import write_media_model
from model_parts import check_greedy, make_model, random_tokens
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.errors import CheckpointCorruptError
from quire.outputs import LoRARequest
from quire.testing.model.dense_attention import difference, logits_of
from quire.testing.model.model_checks import check_chunks, check_logits
from quire.worker.loading.checkpoint_files import find_weight_files, read_headers
from quire.worker.loading.weight_loading import load_weights
from quire_models.media_models.media_table import MEDIA_BY_ARCHITECTURE

TOLERANCE = 1e-4
NAMES = [(model, shape) for model, shapes in MEDIA_CASES.items() for shape in shapes]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=NAMES, ids="-".join)
def scene(request, tmp_path_factory):
    architecture, shape = request.param
    case = MEDIA_CASES[architecture][shape]
    written = write_media_model(tmp_path_factory.mktemp("media"), case)
    assert written.config["architectures"] == [architecture]
    return scene_of(written)


def test_logits_equal_those_of_transformers(scene):
    check_logits(scene)


def test_chunks_give_the_logits_of_transformers(scene):
    check_chunks(scene)


def test_greedy_tokens_equal_those_of_transformers_and_vary(scene):
    check_greedy(scene)


def test_the_described_number_of_parameters_is_that_of_the_text_model(scene):
    row = MEDIA_BY_ARCHITECTURE[scene.description.architecture]
    stored = read_headers(find_weight_files(scene.folder))
    text = [tensor for name, tensor in stored.items() if not name.startswith(row.left_out)]
    assert len(text) < len(stored)
    assert scene.description.num_params == sum(prod(tensor.shape) for tensor in text)


def test_every_model_of_the_table_has_a_case():
    assert set(MEDIA_CASES) == set(MEDIA_BY_ARCHITECTURE)


GEMMA = MEDIA_CASES["Gemma3ForConditionalGeneration"]["windows"]
MOE = MEDIA_CASES["Qwen3VLMoeForConditionalGeneration"]["mrope"]
OLD, NEW = "language_model.model.", "model.language_model."


def rename(folder: Path, prefixes: dict[str, str]) -> None:
    """Rename the tensors of a checkpoint; an empty prefix removes them."""
    renamed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        found = next((old for old in prefixes if name.startswith(old)), None)
        new = name if found is None else prefixes[found] + name.removeprefix(found)
        if found is None or prefixes[found]:
            renamed[new] = tensor
    save_file(renamed, folder / "model.safetensors")


def test_names_of_both_layouts_load(tmp_path):
    checkpoint = write_media_model(tmp_path, GEMMA)
    rename(tmp_path, {OLD: NEW, "vision_tower.": "model.vision_tower."})
    model = make_model(checkpoint.config)
    load_weights(model, tmp_path)
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


@pytest.mark.parametrize("layout", [OLD, NEW])
def test_a_missing_tensor_is_named_as_in_the_layout_of_the_checkpoint(tmp_path, layout):
    checkpoint = write_media_model(tmp_path, GEMMA)
    rename(tmp_path, {f"{OLD}layers.1.mlp.up_proj": "", OLD: layout})
    with pytest.raises(
        CheckpointCorruptError, match=rf": {layout}layers\.1\.mlp\.up_proj\.weight$"
    ):
        load_weights(make_model(checkpoint.config), tmp_path)


def test_a_tensor_of_no_known_part_is_named(tmp_path):
    checkpoint = write_media_model(tmp_path, GEMMA)
    rename(tmp_path, {"vision_tower.post_layernorm.": "radar_tower."})
    with pytest.raises(CheckpointCorruptError, match=r"radar_tower\.(bias|weight)"):
        load_weights(make_model(checkpoint.config), tmp_path)


def test_experts_that_are_stored_transposed_as_published_are_equal(tmp_path):
    checkpoint = write_media_model(tmp_path, MOE)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in tensors:
        if ".mlp.experts." in name:
            tensors[name] = tensors[name].transpose(1, 2).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    model = make_model(checkpoint.config)
    load_weights(model, tmp_path)
    token_ids = random_tokens(30)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < TOLERANCE


def test_an_engine_runs_the_text_with_an_adapter_and_says_what_is_left_out(tmp_path, caplog):
    """An adapter of the whole model has modules of the tower, which text does not use."""
    checkpoint = write_media_model(tmp_path / "model", GEMMA)
    prompt = random_tokens(24, seed=4)
    targets = ["q_proj", "k_proj", "v_proj", "up_proj", "down_proj"]
    model = adapted(checkpoint.theirs, "first", target_modules=targets)
    saved = save_adapter(model, "first", tmp_path / "adapters")
    assert any("vision_tower" in name for name in load_file(saved / "adapter_model.safetensors"))
    greedily = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    caplog.set_level("INFO", "quire")
    with LLM(
        str(tmp_path / "model"), dtype="float32", threads=1, max_model_len=64, enable_lora=True
    ) as llm:
        (found,) = llm.generate(
            [prompt.tolist()], greedily, lora_request=LoRARequest("first", 1, str(saved))
        )
    tokens = list(found.outputs[0].token_ids)
    logits = checkpoint.logits(torch.tensor([*prompt.tolist(), *tokens]))
    assert tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()
    assert "media towers are left out" in caplog.text
