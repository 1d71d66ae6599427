"""Mistral's own layout gives the same model as the layout of Hugging Face."""

import pytest
import torch
from model_parts import load_model, make_model, random_tokens
from safetensors.torch import save_file
from torch import Tensor

from quire.errors import CheckpointCorruptError, UnsupportedModelError
from quire.interfaces.quantization import PreparedQuantization
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.worker.loading.formats.consolidated import halves_from_pairs
from quire.worker.loading.weight_loading import load_weights

NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
HEAD_DIM = 16


def pairs_from_halves(tensor: Tensor) -> Tensor:
    """Put row i of each head at 2 i, and row i + D / 2 behind it."""
    half = HEAD_DIM // 2
    rows = []
    for head in tensor.split(HEAD_DIM):
        for i in range(half):
            rows += [head[i], head[i + half]]
    return torch.stack(rows)


def consolidated(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, tensor in weights.items():
        own = next(ours for ours in NAMES if ours in name)
        value = pairs_from_halves(tensor) if own.endswith(("q_proj", "k_proj")) else tensor
        out[name.replace(own, NAMES[own]).removeprefix("model.")] = value
    return out


@pytest.fixture
def written(tmp_path) -> WrittenCheckpoint:
    return write_checkpoint(tmp_path / "model", "LlamaForCausalLM")


@pytest.fixture
def folder(written, tmp_path):
    save_file(consolidated(dict(written.weights)), tmp_path / "consolidated.safetensors")
    return tmp_path


def test_rows_of_pairs_become_halves():
    tensor = torch.randn(2 * HEAD_DIM, 3)
    assert torch.equal(halves_from_pairs(pairs_from_halves(tensor), HEAD_DIM), tensor)
    even_first = halves_from_pairs(torch.arange(8), 8)
    assert even_first.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("has_head_dim", [True, False])
def test_a_consolidated_checkpoint_gives_the_same_model(written, folder, has_head_dim):
    config = {key: value for key, value in written.config.items() if key != "head_dim"}
    model = make_model(written.config)
    load_weights(model, folder, config=written.config if has_head_dim else config)
    tokens = random_tokens(9)
    torch.testing.assert_close(logits_of(model, tokens), logits_of(load_model(written), tokens))


def test_several_consolidated_files_are_one_checkpoint(written, folder):
    weights = consolidated(dict(written.weights))
    (folder / "consolidated.safetensors").unlink()
    for number, names in enumerate((list(weights)[::2], list(weights)[1::2]), 1):
        file = folder / f"consolidated-{number:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in names}, file)
    model = make_model(written.config)
    load_weights(model, folder, config=written.config)
    tokens = random_tokens(9)
    torch.testing.assert_close(logits_of(model, tokens), logits_of(load_model(written), tokens))


def test_the_layout_of_hugging_face_is_preferred(written):
    other = {name: tensor + 1 for name, tensor in consolidated(dict(written.weights)).items()}
    expected = logits_of(load_model(written), random_tokens(5))
    save_file(other, written.folder / "consolidated.safetensors")
    torch.testing.assert_close(logits_of(load_model(written), random_tokens(5)), expected)


def test_a_tensor_of_another_name_is_listed(written, folder):
    weights = consolidated(dict(written.weights)) | {"layers.0.attention.wx.weight": torch.ones(1)}
    save_file(weights, folder / "consolidated.safetensors")
    with pytest.raises(CheckpointCorruptError, match=r"not in the model: layers\.0\.attention\.wx"):
        load_weights(make_model(written.config), folder, config=written.config)


def test_a_number_in_place_of_a_matrix_is_an_error(written, folder):
    weights = consolidated(dict(written.weights)) | {"layers.0.attention.wk.weight": torch.ones(())}
    save_file(weights, folder / "consolidated.safetensors")
    with pytest.raises(CheckpointCorruptError, match=r"wk\.weight has shape \[\].* head_dim 16"):
        load_weights(make_model(written.config), folder, config=written.config)


def test_a_tensor_under_both_names_is_an_error(written, folder):
    weights = consolidated(dict(written.weights)) | {"model.norm.weight": torch.ones(64)}
    save_file(weights, folder / "consolidated.safetensors")
    with pytest.raises(
        CheckpointCorruptError, match=r"norm\.weight .* are both model\.norm\.weight"
    ):
        load_weights(make_model(written.config), folder, config=written.config)


def test_rows_that_are_no_whole_heads_are_an_error(written, folder):
    weights = consolidated(dict(written.weights))
    weights["layers.0.attention.wk.weight"] = torch.ones(15, 64)
    save_file(weights, folder / "consolidated.safetensors")
    with pytest.raises(
        CheckpointCorruptError, match=r"wk\.weight has shape \[15, 64\].* head_dim 16"
    ):
        load_weights(make_model(written.config), folder, config=written.config)


class Reader(PreparedQuantization):
    """A reader that takes any checkpoint as it is."""

    @classmethod
    def from_config(cls, config):
        return cls()

    def read(self, tensors, read):
        return dict(tensors)


def test_quantized_weights_in_this_layout_are_refused_with_the_way_out(written, folder):
    with pytest.raises(
        UnsupportedModelError, match=r"consolidated\.safetensors has .* download the files model\*"
    ):
        load_weights(make_model(written.config), folder, config=written.config, prepared=Reader())
