"""Weights: correct tensors reach their parameters, wrong ones are an error that names them."""

import pytest
import torch
from model_parts import CONTEXT, load_model, make_model, random_tokens
from safetensors.torch import load_file, save_file
from torch import nn

from quire.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
)
from quire.interfaces.model import Model
from quire.layers import SingleDevice
from quire.layers.layer import Layer, frozen
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.worker.loading.weight_loading import (
    _dummy_tensor,
    held_weight_bytes,
    init_dummy_weights,
    load_weights,
)

ARCHITECTURE = "Qwen3ForCausalLM"


@pytest.fixture
def written(tmp_path) -> WrittenCheckpoint:
    return write_checkpoint(tmp_path / "model", ARCHITECTURE, num_hidden_layers=2)


def rewrite(written: WrittenCheckpoint, **changes: torch.Tensor | None) -> None:
    """Write the weights again with some changed, added, or (None) left out."""
    weights = {**load_file(written.folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, written.folder / "model.safetensors")


def load(written: WrittenCheckpoint) -> Model:
    return load_model(written)


def test_shards_give_the_same_model_as_one_file(written, tmp_path):
    options = {"num_hidden_layers": 2, "num_shards": 3}
    sharded = write_checkpoint(tmp_path / "sharded", ARCHITECTURE, **options)
    assert not (sharded.folder / "model.safetensors").exists()
    token_ids = random_tokens(9)
    torch.testing.assert_close(
        logits_of(load(sharded), token_ids), logits_of(load(written), token_ids), rtol=0, atol=0
    )


def test_progress_ends_at_the_bytes_of_the_weights(written):
    seen = []
    model = make_model(written.config)
    read = load_weights(model, written.folder, lambda done, total: seen.append((done, total)))
    assert read == 4 * written.num_params
    assert seen[-1] == (read, read)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_weights_are_cast_to_the_dtype_of_the_model(written):
    rewrite(written, **{name: tensor.bfloat16() for name, tensor in written.weights.items()})
    model = load(written)
    norm = dict(model.named_parameters())["model.norm.weight"]  # type: ignore[attr-defined]
    assert norm.dtype is torch.float32
    torch.testing.assert_close(norm, written.weights["model.norm.weight"].bfloat16().float())


def test_weights_that_the_model_ignores_do_not_matter(written):
    rewrite(written, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    load(written)


def test_what_only_begins_like_an_ignored_weight_is_unexpected(written):
    rewrite(written, **{"model.layers.0.self_attn.rotary_emb.inv_freq_of_ours": torch.ones(8)})
    with pytest.raises(CheckpointCorruptError, match="inv_freq_of_ours"):
        load(written)


@pytest.fixture
def tied(tmp_path) -> WrittenCheckpoint:
    options = {"num_hidden_layers": 2, "tie_word_embeddings": True}
    return write_checkpoint(tmp_path / "tied", ARCHITECTURE, **options)


EMBEDDING = "model.embed_tokens.weight"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_copy_of_a_tied_head_is_left_out(tied, dtype):
    expected = logits_of(load(tied), random_tokens(5))
    rewrite(tied, **{"lm_head.weight": tied.weights[EMBEDDING].to(dtype).clone()})
    torch.testing.assert_close(logits_of(load(tied), random_tokens(5)), expected)


def test_a_tied_head_that_stands_for_the_embedding_is_loaded(tied):
    expected = logits_of(load(tied), random_tokens(5))
    rewrite(tied, **{"lm_head.weight": tied.weights[EMBEDDING], EMBEDDING: None})
    torch.testing.assert_close(logits_of(load(tied), random_tokens(5)), expected)


@pytest.mark.parametrize("layers", [None, (0, 1), (1, 2)], ids=str)
def test_a_tied_head_that_differs_is_refused_with_the_way_out(tied, layers):
    head = tied.weights[EMBEDDING].clone()
    head[-1, -1] += 1e-3
    rewrite(tied, **{"lm_head.weight": head})
    with pytest.raises(CheckpointCorruptError, match="they differ; set tie_word_embeddings to f"):
        load_model(tied, layers=None if layers is None else range(*layers))


def test_a_tied_head_of_another_shape_is_refused(tied):
    rewrite(tied, **{"lm_head.weight": tied.weights[EMBEDDING][:-1].clone()})
    with pytest.raises(
        CheckpointCorruptError, match=r"ties lm_head\.weight to model\.embed_tokens"
    ):
        load(tied)


def test_an_untied_head_that_is_missing_is_explained(tmp_path):
    written = write_checkpoint(tmp_path, ARCHITECTURE, tie_word_embeddings=False)
    rewrite(written, **{"lm_head.weight": None})
    with pytest.raises(CheckpointCorruptError, match=r"lm_head\.weight\. .* set it to true"):
        load_weights(make_model(written.config), written.folder, config=written.config)


def test_a_model_of_plain_torch_modules_loads_too(tmp_path):
    class Plain(nn.Module, Model):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, *args):
            raise NotImplementedError

        def compute_logits(self, hidden_states):
            raise NotImplementedError

    weights = {"inner.weight": torch.arange(6.0).view(2, 3), "inner.bias": torch.ones(2)}
    save_file(weights, tmp_path / "model.safetensors")
    model = Plain()
    load_weights(model, tmp_path)
    torch.testing.assert_close(dict(model.state_dict()), weights)


class Noted(Layer):
    """Notes when it is loaded and when it is made ready."""

    def __init__(self, name: str, notes: list[str], weight: nn.Parameter | None = None) -> None:
        super().__init__()
        self.name, self.notes = name, notes
        shared = frozen((2,), torch.float32, CONTEXT.device) if weight is None else weight
        self.register_parameter("weight", shared)

    def load_weight(self, parameter: str, tensor: torch.Tensor, part: str) -> None:
        super().load_weight(parameter, tensor, part)
        self.notes.append(f"load {self.name}")

    def finish_loading(self) -> None:
        self.notes.append(f"finish {self.name}")


class Bare(Layer):
    """Has nothing to load."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes

    def finish_loading(self) -> None:
        self.notes.append("finish bare")


class Stack(nn.Module, Model):
    """An embedding whose weight its head shares, and two layers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.embed = Noted("embed", self.notes)
        self.bare = Bare(self.notes)
        self.head = Noted("head", self.notes, self.embed.get_parameter("weight"))
        self.first, self.second = (Noted(name, self.notes) for name in ("first", "second"))

    def forward(self, *args):
        raise NotImplementedError

    def compute_logits(self, hidden_states):
        raise NotImplementedError


IN_ORDER = ["load embed", "finish embed", "finish head", "load first", "finish first",
            "load second", "finish second", "finish bare"]  # fmt: skip


def test_a_layer_is_made_ready_as_soon_as_it_is_loaded(tmp_path):
    weights = {f"{name}.weight": torch.ones(2) for name in ("embed", "first", "second")}
    save_file(weights, tmp_path / "model.safetensors")
    model = Stack()
    load_weights(model, tmp_path)
    assert model.notes == IN_ORDER


def test_random_weights_make_layers_ready_one_by_one_too():
    model = Stack()
    init_dummy_weights(model, 0)
    ready = [note for note in model.notes if note.startswith("finish")]
    assert ready == [note for note in IN_ORDER if note.startswith("finish")]


class Chain(Stack):
    """`first` shares a weight with `second`, and `second` another one with `embed` and `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.second.register_parameter("extra", self.embed.get_parameter("weight"))
        self.first.register_parameter("also", self.second.get_parameter("weight"))


def stack_weights(tmp_path, *names: str):
    weights = {f"{name}.weight": torch.ones(2) for name in names}
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def test_layers_that_share_through_another_are_finished_together(tmp_path):
    model = Chain()
    weights = {"embed.weight": torch.ones(2), "first.weight": torch.ones(2)}
    save_file(weights | {"first.also": torch.ones(2)}, tmp_path / "model.safetensors")
    load_weights(model, tmp_path)
    num_loads = sum(note.startswith("load") for note in model.notes)
    assert all(note.startswith("load") for note in model.notes[:num_loads])
    finished = sorted(model.notes[num_loads:])
    assert finished == [
        "finish bare",
        *(f"finish {n}" for n in ("embed", "first", "head", "second")),
    ]


def test_a_shared_weight_counts_once_and_what_can_be_computed_does_not(tmp_path):
    model = Stack()
    model.register_buffer("table", torch.ones(100), persistent=False)
    model.register_buffer("packed", torch.ones(5), persistent=True)
    assert held_weight_bytes(model) == 4 * (3 * 2 + 5)


def test_missing_tensors_are_listed_by_the_names_of_the_checkpoint(written):
    rewrite(written, **{"model.layers.1.self_attn.k_proj.weight": None})
    with pytest.raises(CheckpointCorruptError, match=r"1 tensors are missing: .*1\.self_attn\.k_p"):
        load(written)


def test_unexpected_tensors_are_listed(written):
    rewrite(
        written,
        **{
            "model.layers.7.mlp.up_proj.weight": torch.ones(1),
            "model.layers.0.self_attn.q_proj.bias": torch.ones(64),
        },
    )
    with pytest.raises(CheckpointCorruptError, match="2 tensors are not in the model") as caught:
        load(written)
    assert "model.layers.7.mlp.up_proj.weight" in str(caught.value)
    assert "model.layers.0.self_attn.q_proj.bias" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "wanted"),
    [
        ("model.layers.0.self_attn.v_proj.weight", (16, 64), [32, 64]),
        ("model.layers.0.self_attn.k_norm.weight", (8,), [16]),
        ("model.layers.1.mlp.down_proj.weight", (112, 64), [64, 112]),
        ("model.embed_tokens.weight", (321, 64), [320, 64]),
        ("lm_head.weight", (64, 320), [320, 64]),
    ],
)
def test_a_wrong_shape_is_an_error_with_both_shapes(written, name, shape, wanted):
    rewrite(written, **{name: torch.ones(shape)})
    with pytest.raises(CheckpointCorruptError) as caught:
        load(written)
    assert name in str(caught.value)
    assert str(list(shape)) in str(caught.value)
    assert str(wanted) in str(caught.value)


def test_nothing_is_written_before_everything_is_checked(written):
    model = make_model(written.config)
    for parameter in model.parameters():  # type: ignore[attr-defined]
        parameter.fill_(7.0)
    rewrite(written, **{"model.norm.weight": torch.ones(3)})
    with pytest.raises(CheckpointCorruptError):
        load_weights(model, written.folder)
    assert all((parameter == 7.0).all() for parameter in model.parameters())  # type: ignore[attr-defined]


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no-such-model"):
        load_weights(
            make_model({"architectures": [ARCHITECTURE], **TINY}), tmp_path / "no-such-model"
        )


TINY = {
    "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 8,
}  # fmt: skip


def test_a_folder_without_weights_is_refused_with_what_it_lacks(written):
    (written.folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"model\.safetensors"):
        load(written)


def test_dummy_weights_follow_the_seed_and_stay_sane():
    config = {"architectures": [ARCHITECTURE], **TINY, "hidden_size": 64, "head_dim": 16}
    models = [make_model(config) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        init_dummy_weights(model, seed)
    logits = [logits_of(model, torch.arange(8)) for model in models]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=0)
    assert not torch.equal(logits[0], logits[2])
    assert 0.3 < float(logits[0].std()) < 3.0
    assert CONTEXT.dtype is torch.float32


def test_a_model_that_is_no_module_is_its_authors_mistake(written):
    class NoModule(Model):
        def forward(self, *args):
            raise NotImplementedError

        def compute_logits(self, hidden_states):
            raise NotImplementedError

    with pytest.raises(TypeError, match="NoModule"):
        load_weights(NoModule(), written.folder)


def scale_name(owner: str) -> str:
    return f"model.layers.0.self_attn.{owner}k_scale"


@pytest.mark.parametrize("owner", ["", "attn.", "attention.", "k_proj."])
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_the_scale_of_a_float8_cache_may_be_there(written, owner, shape):
    rewrite(written, **{scale_name(owner): torch.full(shape, 0.5)})
    model = load(written)
    layers = dict(model.named_modules())  # type: ignore[attr-defined]
    first, second = (layers[f"model.layers.{i}.self_attn.attention"].params for i in range(2))
    assert (first.k_scale, first.v_scale) == (0.5, 1.0)
    assert (second.k_scale, second.v_scale) == (1.0, 1.0)


def test_a_scale_of_a_layer_that_is_not_there_is_unexpected(written):
    rewrite(written, **{"model.layers.7.self_attn.k_scale": torch.tensor(0.5)})
    with pytest.raises(CheckpointCorruptError, match=r"layers\.7\.self_attn\.k_scale"):
        load(written)


def test_a_scale_for_each_head_is_refused(written):
    rewrite(written, **{scale_name(""): torch.ones(2)})
    with pytest.raises(CheckpointCorruptError, match=r"k_scale .*has shape \[2\].* requires \[\]"):
        load(written)


def test_two_scales_for_one_parameter_are_refused(written):
    rewrite(written, **{scale_name(owner): torch.tensor(0.5) for owner in ("", "k_proj.")})
    with pytest.raises(CheckpointCorruptError, match="are both k_scale of one layer"):
        load(written)


def test_a_model_may_have_other_names_than_its_checkpoint(written):
    weights = load_file(written.folder / "model.safetensors")
    save_file(
        {f"wrapped.{name}": tensor for name, tensor in weights.items()},
        written.folder / "model.safetensors",
    )
    model = make_model(written.config)
    with pytest.raises(CheckpointCorruptError, match="wrapped"):
        load_weights(model, written.folder)
    model.map_weight_name = lambda name: name.removeprefix("wrapped.")
    load_weights(model, written.folder)
    norm = dict(model.named_parameters())["model.norm.weight"]
    assert torch.equal(norm, weights["model.norm.weight"])


def of_stage(written: WrittenCheckpoint, *layers: int) -> Model:
    return load_model(written, layers=range(*layers))


def test_a_stage_needs_its_own_weights_alone(written):
    down = "model.layers.{}.mlp.down_proj.weight"
    rewrite(written, **{down.format(0): None, "model.embed_tokens.weight": None})
    of_stage(written, 1, 2)
    with pytest.raises(CheckpointCorruptError, match=r"2 tensors are missing: .*down_proj"):
        of_stage(written, 0, 1)


def test_a_stage_refuses_what_no_stage_has_in_its_layers(written):
    one = torch.ones(1)
    rewrite(written, **{"model.layers.1.mlp.other.weight": one})
    of_stage(written, 0, 1)
    with pytest.raises(CheckpointCorruptError, match=r"layers\.1\.mlp\.other"):
        of_stage(written, 1, 2)


@pytest.mark.parametrize("unknown", ["model.layers.2.mlp.up_proj.weight", "model.other.weight"])
def test_every_stage_refuses_what_belongs_to_none(written, unknown):
    rewrite(written, **{unknown: torch.ones(1)})
    for layers in ((0, 1), (1, 2)):
        with pytest.raises(CheckpointCorruptError, match="are not in the model"):
            of_stage(written, *layers)


class Shard(SingleDevice):
    """One of two devices, which never exchange anything."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
@pytest.mark.parametrize("tied", [False, True])
def test_dummy_weights_of_ranks_are_parts_of_the_same_model(tmp_path, architecture, tied):
    """As if a checkpoint with the whole model's dummy weights were loaded by each."""
    written = write_checkpoint(
        tmp_path, architecture, num_hidden_layers=2, tie_word_embeddings=tied, vocab_size=321
    )
    weights = {
        name: _dummy_tensor(name, tuple(tensor.shape), 5, tensor.device)
        for name, tensor in written.weights.items()
    }
    save_file(weights, written.folder / "model.safetensors")
    grid = [(None, None), *((Shard(rank), range(i, i + 1)) for rank in range(2) for i in range(2))]
    for tp, layers in grid:
        loaded = load_model(written, tp=tp, layers=layers)
        dummy = make_model(written.config, tp=tp, layers=layers)
        init_dummy_weights(dummy, 5)
        expected = dict(loaded.named_parameters())  # type: ignore[attr-defined]
        for name, parameter in dummy.named_parameters():  # type: ignore[attr-defined]
            torch.testing.assert_close(parameter, expected.pop(name), rtol=0, atol=0)
        assert not expected


def test_dummy_weights_of_two_tensors_differ():
    one, other = (_dummy_tensor(name, (64,), 0, torch.device("cpu")) for name in ("a", "b"))
    assert not torch.equal(one, other)
