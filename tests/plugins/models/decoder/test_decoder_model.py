"""Architectures against transformers on the same weights, and mutants that must differ."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import greedy, load_model, make_model, random_tokens, written_model
from safetensors.torch import save_file
from torch import Tensor

from quire.interfaces.model import ForwardBatch, Model, StageTensors
from quire.layers import Attention
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights

TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa-2": ("LlamaForCausalLM", {}),
    "llama-no-gqa": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama-gqa-4": ("LlamaForCausalLM", {"num_attention_heads": 8, "num_key_value_heads": 2}),
    "llama-mqa": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-wide-heads": ("LlamaForCausalLM", {"head_dim": 24}),
    "llama-linear": ("LlamaForCausalLM", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama-llama3": ("LlamaForCausalLM", {"rope_scaling": LLAMA3, "rope_theta": 500000.0}),
    "llama-rope-parameters": (
        "LlamaForCausalLM",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 777.0}},
    ),
    "llama-eps": ("LlamaForCausalLM", {"rms_norm_eps": 0.1}),
    "qwen2-gqa-2": ("Qwen2ForCausalLM", {}),
    "qwen2-no-gqa": ("Qwen2ForCausalLM", {"num_key_value_heads": 4}),
    "qwen2-mqa-tied": ("Qwen2ForCausalLM", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2-linear": ("Qwen2ForCausalLM", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "qwen3-gqa-2": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-gqa-4": (
        "Qwen3ForCausalLM",
        {"head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 2},
    ),
    "qwen3-mqa-biases": ("Qwen3ForCausalLM", {"num_key_value_heads": 1, "attention_bias": True}),
    "qwen3-tied": ("Qwen3ForCausalLM", {"tie_word_embeddings": True, "rope_theta": 1000000.0}),
    "qwen3-llama3": ("Qwen3ForCausalLM", {"rope_scaling": LLAMA3}),
    "gemma3": ("Gemma3ForCausalLM", {}),
    "gemma3-untied-mqa": (
        "Gemma3ForCausalLM",
        {"tie_word_embeddings": False, "num_key_value_heads": 1, "sliding_window": 7},
    ),
    "gemma3-biases-wide-heads": (
        "Gemma3ForCausalLM",
        {"attention_bias": True, "head_dim": 24, "sliding_window": 64},
    ),
    "gemma3-every-other-capped": (
        "Gemma3ForCausalLM",
        {"sliding_window_pattern": 2, "sliding_window": 2, "final_logit_softcapping": 0.5},
    ),
}


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=SHAPES)
def written(request, tmp_path_factory) -> WrittenCheckpoint:
    architecture, config = SHAPES[request.param]
    return write_checkpoint(tmp_path_factory.mktemp(request.param), architecture, **config)


@pytest.fixture(scope="module")
def reference(written):
    return load_reference(written)


def load_reference(written: WrittenCheckpoint) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        written.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def reference_logits(reference: Any, token_ids: Tensor) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = reference(token_ids.unsqueeze(0)).logits[0]
    return logits


@pytest.mark.parametrize("prepack", [False, True])
@pytest.mark.parametrize("num_tokens", [3, 200])
def test_logits_equal_those_of_transformers(written, reference, prepack, num_tokens):
    token_ids = random_tokens(num_tokens)
    ours = logits_of(load_model(written, prepack=prepack), token_ids)
    assert difference(ours, reference_logits(reference, token_ids)) < TOLERANCE


def test_greedy_tokens_equal_those_of_transformers_and_vary(written, reference):
    prompt = random_tokens(8)
    tokens = greedy(load_model(written), prompt, 64)
    expected = reference.generate(
        prompt.unsqueeze(0), max_new_tokens=64, do_sample=False, eos_token_id=None
    )
    assert tokens == expected[0, len(prompt) :].tolist()
    assert len(set(tokens)) >= 32


def test_the_described_number_of_parameters_is_that_of_transformers(written, reference):
    model: Any = make_model(written.config)
    described = model.config.num_params
    assert described == sum(p.numel() for p in reference.parameters()) == written.num_params


@pytest.mark.parametrize("chunk", [1, 7, 31])
def test_chunks_give_the_logits_of_the_whole(tmp_path, chunk):
    _, model = written_model(tmp_path, "Qwen3ForCausalLM")
    token_ids = random_tokens(40)
    whole = logits_of(model, token_ids)
    chunks = [logits_of(model, token_ids[i : i + chunk], i) for i in range(0, 40, chunk)]
    assert difference(torch.cat(chunks), whole) < TOLERANCE


def drop_biases(model: Model) -> None:
    for name, parameter in model.named_parameters():  # type: ignore[attr-defined]
        if name.endswith("qkv_proj.bias"):
            parameter.zero_()


def drop_one_key_bias(model: Model) -> None:
    dict(model.named_parameters())[  # type: ignore[attr-defined]
        "model.layers.1.self_attn.qkv_proj.bias"
    ][64:80] = 0


def drop_qk_norm(model: Any) -> None:
    for layer in model.model.layers.values():
        layer.self_attn.qk_norm = None


def plain_norms(model: Model) -> None:
    for name, parameter in model.named_parameters():  # type: ignore[attr-defined]
        if name.endswith("layernorm.weight"):
            parameter.fill_(1.0)


def swap_kv_heads(model: Any) -> None:
    layer = model.model.layers["0"].self_attn
    heads = layer.qkv_proj.weight.unflatten(0, (-1, layer.attention.head_dim))  # [H + 2K, D, ..]
    heads[[4, 5, 6, 7]] = heads[[5, 4, 7, 6]]


def rotate_neighbours(model: Any) -> None:
    """Rotate element 2i with 2i + 1, as other models do, instead of the two halves."""
    table = model.model.rotaries[0].table
    half = table.shape[-1] // 2
    table.copy_(table[..., :half].repeat_interleave(2, -1))


def double_scale(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Attention):
            object.__setattr__(module.params, "scale", 2 * module.params.scale)


def untie(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.flip(0), requires_grad=False)


MUTANTS: list[tuple[str, Callable[[Any], None]]] = [
    ("qwen2-gqa-2", drop_biases),
    ("qwen2-gqa-2", drop_one_key_bias),
    ("llama-biases", drop_biases),
    ("qwen3-gqa-2", drop_qk_norm),
    ("llama-gqa-2", plain_norms),
    ("llama-gqa-2", swap_kv_heads),
    ("qwen3-gqa-2", swap_kv_heads),
    ("llama-gqa-2", rotate_neighbours),
    ("llama-gqa-2", double_scale),
    ("llama-tied", untie),
]


@pytest.mark.parametrize(
    ("shape", "mutate"), MUTANTS, ids=[f"{shape}-{mutate.__name__}" for shape, mutate in MUTANTS]
)
def test_a_mutant_is_seen(tmp_path, shape, mutate):
    architecture, config = SHAPES[shape]
    written, model = written_model(tmp_path, architecture, **config)
    token_ids = random_tokens(60)
    expected = reference_logits(load_reference(written), token_ids)
    assert difference(logits_of(model, token_ids), expected) < TOLERANCE
    with torch.no_grad():
        mutate(model)
    assert difference(logits_of(model, token_ids), expected) > 30 * TOLERANCE


@pytest.mark.parametrize(
    ("shape", "wrong"),
    [
        ("llama-gqa-2", {"rope_theta": 9000.0}),
        ("llama-linear", {"rope_scaling": None}),
        ("llama-linear", {"rope_scaling": {"type": "linear", "factor": 4.1}}),
        ("llama-llama3", {"rope_scaling": {**LLAMA3, "factor": 2.0}}),
        ("llama-llama3", {"rope_scaling": {**LLAMA3, "low_freq_factor": 2.0}}),
        ("llama-llama3", {"rope_scaling": None}),
        ("llama-eps", {"rms_norm_eps": 1e-6}),
    ],
)
def test_a_wrong_config_value_is_seen(tmp_path, shape, wrong):
    architecture, config = SHAPES[shape]
    written = write_checkpoint(tmp_path, architecture, **config)
    token_ids = random_tokens(200)
    expected = reference_logits(load_reference(written), token_ids)
    mutant = make_model({**written.config, **wrong})
    load_weights(mutant, written.folder)
    assert difference(logits_of(mutant, token_ids), expected) > 30 * TOLERANCE


@pytest.mark.parametrize("tied", [False, True])
def test_two_pipeline_stages_give_the_logits_of_one(tmp_path, tied):
    written, model = written_model(tmp_path, "LlamaForCausalLM", tie_word_embeddings=tied)
    first = load_model(written, layers=range(1))
    last = load_model(written, layers=range(1, 3))
    token_ids, positions = random_tokens(20), torch.arange(20)
    with torch.inference_mode():
        stage = first.forward(token_ids, positions, ForwardBatch(attention=[0]))
        assert isinstance(stage, StageTensors)
        batch = ForwardBatch(attention=[0])
        hidden_states = last.forward(None, positions, batch, stage_input=stage)
        assert isinstance(hidden_states, Tensor)
        logits = last.compute_logits(hidden_states)
    torch.testing.assert_close(logits, logits_of(model, token_ids))


def test_embeddings_can_take_the_place_of_ids(tmp_path):
    _, model = written_model(tmp_path, "LlamaForCausalLM")
    token_ids = random_tokens(12)
    embeds = model.get_parameter("model.embed_tokens.weight")[token_ids]  # type: ignore[attr-defined]
    with torch.inference_mode():
        batch = ForwardBatch(attention=[0])
        hidden = model.forward(None, torch.arange(12), batch, inputs_embeds=embeds)
        assert isinstance(hidden, Tensor)
    torch.testing.assert_close(model.compute_logits(hidden), logits_of(model, token_ids))


def test_a_stage_takes_its_own_weights_and_lets_others_have_theirs(tmp_path):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM")
    first, last = (make_model(written.config, layers=part) for part in (range(1), range(1, 3)))
    down = "model.layers.{}.mlp.down_proj.weight"
    ends = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    taken = [
        [
            stage.map_weight_name(name) is not None
            for name in (down.format(0), down.format(1), *ends)
        ]
        for stage in (first, last)
    ]
    assert taken == [[True, False, True, False, False], [False, True, False, True, True]]
    for stage in (first, last):
        for unknown in (down.format(3), "model.other.weight", "model.layers.x.weight"):
            assert stage.map_weight_name(unknown) == unknown, "the loader refuses it by name"


@pytest.mark.parametrize(
    ("family", "shape"),
    [("OPTForCausalLM", "350m"), ("BloomForCausalLM", "4 heads"), ("GPT2LMHeadModel", "plain")],
)
def test_stages_of_other_families_divide_their_weights(tmp_path, family, shape):
    """Learned positions, norms and projections of embeddings are of the first stage alone."""
    written = write_family(tmp_path, CASES[family][shape])
    model, *stages = (
        make_model(written.config, layers=layers) for layers in (None, range(1), range(1, 4))
    )
    for each in (model, *stages):
        load_weights(each, written.folder)
    token_ids, positions = random_tokens(20), torch.arange(20)
    batch = ForwardBatch(attention=[0])
    with torch.inference_mode():
        handed = stages[0].forward(token_ids, positions, batch)
        hidden_states = stages[1].forward(None, positions, batch, stage_input=handed)
        logits = stages[1].compute_logits(hidden_states)
    torch.testing.assert_close(logits, logits_of(model, token_ids))


@pytest.mark.parametrize("tied", [False, True])
def test_a_stage_has_the_embedding_where_it_needs_it_alone(tmp_path, tied):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM", tie_word_embeddings=tied)
    parts = (range(1), range(1, 2), range(2, 3))
    stages: list[Any] = [make_model(written.config, layers=part) for part in parts]
    has_embedding = [stage.model.embed_tokens is not None for stage in stages]
    assert has_embedding == [True, False, tied]
    batch = ForwardBatch(attention=[0])
    for stage in stages[1:]:
        with pytest.raises(RuntimeError, match="needs the hidden states of the previous stage"):
            stage.forward(None, torch.arange(3), batch)
    with pytest.raises(RuntimeError, match="only the last pipeline stage computes logits"):
        stages[0].compute_logits(torch.zeros(1, 64))


def test_frequencies_and_a_tied_heads_own_copy_in_the_checkpoint_are_left_out(tmp_path):
    """As older checkpoints have them."""
    written, model = written_model(tmp_path, "LlamaForCausalLM", tie_word_embeddings=True)
    more = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "lm_head.weight": written.weights["model.embed_tokens.weight"].clone(),
    }
    save_file(written.weights | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    token_ids = random_tokens(5)
    again = logits_of(load_model(written), token_ids)
    torch.testing.assert_close(again, logits_of(model, token_ids))
