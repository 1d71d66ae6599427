"""Adapters share a fixed number of slots, and a wrong one changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_parts import CONTEXT, load_model, random_tokens

from quire.errors import AdapterError, EngineDeadError, RefusedError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource
from quire.messages import AdapterRef
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import logits_of
from quire.worker.lora.adapter_manager import AdapterManager, adapted_matrices
from quire.worker.lora.base_model_check import BaseModel
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.family_table import describe

Q_PROJ = "model.layers.0.self_attn.q_proj"
SHAPES = {Q_PROJ: (64, 64), "model.layers.1.mlp.down_proj": (64, 112)}
TOKENS = random_tokens(6)


class SampledTokens(LoRASource):
    """Random adapters seeded by the name of their folder; those in `adapters` take precedence."""

    def __init__(self) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.num_read = 0

    def resolve(self, name: str) -> Path:
        return Path(name)

    def content_hash(self, folder: Path) -> str:
        return folder.name

    def read(self, folder: Path, max_rank: int) -> Adapter:
        self.num_read += 1
        return self.adapters.get(folder.name) or random_adapter(folder.name)


def random_adapter(name: str, rank: int = 2) -> Adapter:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    modules = {
        module: AdapterModule(
            torch.randn(rank, columns, generator=generator),
            torch.randn(rows, rank, generator=generator) * 0.1,
            0.5,
        )
        for module, (rows, columns) in SHAPES.items()
    }
    return Adapter(modules, None, name)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("model"), "LlamaForCausalLM")


@pytest.fixture
def model(written):
    torch.set_num_threads(1)
    return load_model(written)


@pytest.fixture
def manager(model):
    return AdapterManager(model, SampledTokens(), 2, 4)


def ref(name: str, path: str | None = None) -> AdapterRef:
    return AdapterRef(name, path or name, content_hash=path or name)


def logits(model, manager: AdapterManager, index: int) -> torch.Tensor:
    return logits_of(model, TOKENS, adapters=manager.batch([index], [len(TOKENS)]))


def test_an_adapter_is_read_once(manager):
    assert manager.load(ref("a")) == manager.load(ref("a"))
    assert manager.source.num_read == 1


def test_the_least_recently_used_adapter_is_evicted(manager):
    first, second = manager.load(ref("a")), manager.load(ref("b"))
    manager.load(ref("a"))
    assert manager.load(ref("c")) == second
    assert manager.load(ref("a")) == first
    assert manager.source.num_read == 3


def test_an_adapter_in_use_is_not_evicted(manager):
    first, second = manager.load(ref("a")), manager.load(ref("b"))
    assert manager.load(ref("c"), in_use={ref("a"), ref("c")}) == second
    with pytest.raises(AdapterError, match="all 2 adapter slots are in use"):
        manager.load(ref("d"), in_use={ref("a"), ref("c"), ref("d")})
    assert manager.load(ref("a")) == first


def test_a_slot_does_not_keep_the_previous_adapter(model, manager):
    index = manager.load(ref("a"))
    expected = logits(model, manager, index)
    small = Adapter({Q_PROJ: random_adapter("small", 1).modules[Q_PROJ]}, None, "small")
    manager.source.adapters["small"] = small
    manager.load(ref("b"))
    again = manager.load(ref("small"))
    assert again == index
    after_small = logits(model, manager, index)
    manager.load(ref("b"))
    manager.load(ref("a"), in_use={ref("b")})
    torch.testing.assert_close(logits(model, manager, index), expected)
    assert not torch.allclose(after_small, expected, atol=1e-3)


def test_one_content_under_two_names_has_one_slot(manager):
    assert manager.load(ref("a", "same")) == manager.load(ref("b", "same"))


def test_one_name_with_new_content_is_another_adapter(model, manager):
    old = logits(model, manager, manager.load(ref("a", "one")))
    new = logits(model, manager, manager.load(ref("a", "two")))
    assert not torch.allclose(old, new, atol=1e-3)


def test_new_content_in_an_old_folder_is_another_adapter(model, manager):
    found = []
    for content in ("old", "new"):
        manager.source.adapters["folder"] = random_adapter(content)
        index = manager.load(AdapterRef("a", "folder", content_hash=content))
        found.append(logits(model, manager, index))
    assert not torch.allclose(*found, atol=1e-3)


def test_files_that_changed_since_are_refused(manager):
    manager.source.adapters["a"] = random_adapter("something else")
    with pytest.raises(AdapterError, match="'a': its files have changed") as caught:
        manager.load(ref("a", "secret/folder/a"))
    assert "secret" not in str(caught.value), "the message may reach a client"


def test_an_adapter_that_fails_to_load_leaves_its_slot_empty(model, manager, monkeypatch):
    base = logits_of(model, TOKENS)
    last = manager.targets["model.layers.1.mlp.down_proj"].layer
    set_adapter = last.set_adapter

    def fails(index, parts):
        if parts:
            raise RuntimeError("no more")
        set_adapter(index, parts)

    monkeypatch.setattr(last, "set_adapter", fails)
    with pytest.raises(AdapterError, match=r"'a' cannot be used: RuntimeError$") as caught:
        manager.load(ref("a"))
    assert str(caught.value.__cause__) == "no more"
    torch.testing.assert_close(logits(model, manager, 0), base, rtol=0, atol=0)
    monkeypatch.undo()
    index = manager.load(ref("a"))
    assert index == 0, "the slot is free"
    assert not torch.allclose(logits(model, manager, index), base, atol=1e-3)


@pytest.mark.parametrize(
    ("module", "shapes", "named"),
    [
        ("model.layers.9.self_attn.q_proj", ((2, 64), (64, 2)), "not linear layers of"),
        ("model.embed_tokens", ((2, 320), (64, 2)), "adapters cannot change in"),
        ("lm_head", ((2, 64), (320, 2)), "adapters cannot change in"),
        (Q_PROJ, ((2, 128), (64, 2)), r"\[2, 128\]"),
        ("model.layers.0.self_attn.k_proj", ((2, 64), (64, 2)), r"\[32, 2\]"),
        (Q_PROJ, ((5, 64), (64, 5)), "max_lora_rank is 4"),
    ],
)
def test_an_adapter_of_another_base_is_refused_and_nothing_changes(
    model, manager, module, shapes, named
):
    index = manager.load(ref("a"))
    before = logits(model, manager, index)
    wrong = AdapterModule(torch.ones(shapes[0]), torch.ones(shapes[1]), 1.0)
    good = random_adapter("wrong")
    manager.source.adapters["wrong"] = replace(good, modules={**good.modules, module: wrong})
    with pytest.raises(AdapterError, match=named) as caught:
        manager.load(ref("wrong"))
    assert module in str(caught.value)
    torch.testing.assert_close(logits(model, manager, index), before, rtol=0, atol=0)
    assert manager.load(ref("b")) != index


@pytest.mark.parametrize(
    ("shapes", "named"),
    [
        (((), (64, 2)), r"shapes \[\]"),
        (((2,), (64, 2)), r"shapes \[2\]"),
        (((2, 64), (64,)), r"and \[64\]"),
        (((2, 64), ()), r"and \[\]"),
        (((2, 64, 1), (64, 2)), r"\[2, 64, 1\]"),
        (((2, 64), (64, 3)), r"\[64, 3\]"),
        (((64, 2), (2, 64)), "max_lora_rank"),
    ],
)
def test_tensors_that_are_no_pair_of_matrices_are_refused_with_their_shapes(manager, shapes, named):
    wrong = AdapterModule(torch.ones(shapes[0]), torch.ones(shapes[1]), 1.0)
    manager.source.adapters["wrong"] = Adapter({Q_PROJ: wrong}, None, "wrong")
    with pytest.raises(AdapterError, match=named):
        manager.load(ref("wrong"))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: replace(m, a=m.a * float("nan")),
        lambda m: replace(m, b=m.b / 0),
        lambda m: replace(m, a=torch.ones(2, 64, dtype=torch.int64)),
        lambda m: replace(m, b=torch.ones(64, 2, dtype=torch.bool)),
        lambda m: replace(m, scale=float("nan")),
        lambda m: replace(m, scale=float("inf")),
    ],
)
def test_values_that_are_not_finite_are_refused(manager, change):
    good = random_adapter("wrong")
    broken = {**good.modules, Q_PROJ: change(good.modules[Q_PROJ])}
    manager.source.adapters["wrong"] = replace(good, modules=broken)
    with pytest.raises(AdapterError, match=rf"'wrong' .* {Q_PROJ}"):
        manager.load(ref("wrong"))
    assert manager.load(ref("a")) == 0, "the slot is free"


def test_what_is_no_matrix_is_an_error_of_its_adapter(manager):
    good = random_adapter("wrong")
    wrong = {**good.modules, Q_PROJ: AdapterModule(None, None, 1.0)}
    manager.source.adapters["wrong"] = replace(good, modules=wrong)
    with pytest.raises(AdapterError, match=r"'wrong' cannot be used: AttributeError$") as caught:
        manager.load(ref("wrong"))
    assert isinstance(caught.value.__cause__, AttributeError)
    assert manager.load(ref("a")) == 0, "the slot is free"


@pytest.mark.parametrize("is_named", [False, True])
def test_a_device_that_fails_is_not_the_adapters_fault(manager, monkeypatch, is_named):
    def fails(folder, max_rank):
        fault = RuntimeError("CUDA error: an illegal memory access was encountered")
        if is_named:
            raise AdapterError("the source failed") from fault
        raise fault

    monkeypatch.setattr(manager.source, "read", fails)
    with pytest.raises(EngineDeadError, match="illegal memory access"):
        manager.load(ref("a"))


def test_an_adapter_in_float8_is_read_as_the_values_that_it_holds(model, manager):
    good = random_adapter("x")
    small = {
        name: replace(m, a=m.a.to(torch.float8_e4m3fn), b=m.b.to(torch.float8_e4m3fn))
        for name, m in good.modules.items()
    }
    wide = {name: replace(m, a=m.a.float(), b=m.b.float()) for name, m in small.items()}
    manager.source.adapters["small"] = replace(good, modules=small, content_hash="small")
    manager.source.adapters["wide"] = replace(good, modules=wide, content_hash="wide")
    expected = logits(model, manager, manager.load(ref("wide")))
    assert torch.equal(logits(model, manager, manager.load(ref("small"))), expected)


def test_an_adapter_is_read_by_the_source_that_found_it(written):
    torch.set_num_threads(1)
    chosen, other = SampledTokens(), SampledTokens()
    manager = AdapterManager(load_model(written), chosen, 2, 4, sources={"other": other})
    manager.load(replace_source(ref("a"), "other"))
    assert (chosen.num_read, other.num_read) == (0, 1)
    manager.load(ref("b"))
    assert (chosen.num_read, other.num_read) == (1, 1)


def replace_source(adapter: AdapterRef, source: str) -> AdapterRef:
    return AdapterRef(adapter.name, adapter.path, adapter.content_hash, source)


def test_an_adapter_of_another_base_model_is_refused_in_strict_mode(written):
    torch.set_num_threads(1)
    base = BaseModel(["demo"], is_strict=True)
    manager = AdapterManager(load_model(written), SampledTokens(), 2, 4, base=base)
    manager.source.adapters["x"] = replace(random_adapter("x"), base_model="another/model")
    with pytest.raises(AdapterError, match="made for the base model 'another/model'"):
        manager.load(ref("x"))
    assert manager.load(ref("a")) == 0


def test_a_product_that_cannot_keep_the_promise_of_the_mode_is_refused_at_load(
    model, manager, monkeypatch
):
    base = logits_of(model, TOKENS)
    last = manager.targets["model.layers.1.mlp.down_proj"].layer

    def refuse(index, parts):
        if parts:
            raise RefusedError("batch-invariant mode: an adapter's product with A")
        type(last).set_adapter(last, index, parts)

    monkeypatch.setattr(last, "set_adapter", refuse)
    with pytest.raises(AdapterError, match="'a' cannot be used: batch-invariant mode") as caught:
        manager.load(ref("a"))
    assert isinstance(caught.value.__cause__, RefusedError)
    torch.testing.assert_close(logits(model, manager, 0), base, rtol=0, atol=0)
    monkeypatch.undo()
    assert manager.load(ref("b")) == 0


def test_a_slot_is_cleared_of_the_evicted_adapter(manager):
    for name in ("a", "b"):
        manager.load(ref(name))
    small = Adapter({Q_PROJ: random_adapter("small", 1).modules[Q_PROJ]}, None, "small")
    manager.source.adapters["small"] = small
    index = manager.load(ref("small"), in_use={ref("b"), ref("small")})
    down = manager.targets["model.layers.1.mlp.down_proj"].layer
    out = torch.zeros(3, 64)
    down.lora.add(out, torch.ones(3, 112), manager.batch([index], [3]))
    assert not out.any()


def test_a_model_without_linear_layers_cannot_serve_lora():
    with pytest.raises(AdapterError, match="Linear has no linear layers of quire"):
        adapted_matrices(torch.nn.Linear(2, 2))


def test_batches_of_other_lengths_have_other_rows(manager):
    assert manager.batch([0, -1], [1, 2]).rows[0][1].tolist() == [0]
    assert manager.batch([0, -1], [2, 1]).rows[0][1].tolist() == [0, 1]
    assert manager.batch([-1, 0], [2, 1]).rows[0][1].tolist() == [2]
    assert not manager.batch([0, -1], [2, 1]).covers_all


def test_a_batch_without_adapters_is_none(manager):
    assert manager.batch([-1, -1], [3, 1]) is None
    assert manager.batch([], []) is None


def test_a_batch_has_the_rows_of_each_adapter(manager):
    batch = manager.batch([1, -1, 0, 1], [2, 1, 1, 3])
    assert batch is not None
    assert batch.index.tolist() == [1, 1, -1, 0, 1, 1, 1]
    assert [(index, rows.tolist()) for index, rows in batch.rows] == [
        (0, [3]),
        (1, [0, 1, 4, 5, 6]),
    ]
    assert not batch.covers_all


def test_one_adapter_on_every_row_needs_no_gather(manager):
    batch = manager.batch([1, 1], [2, 3])
    assert batch is not None
    assert batch.covers_all


def test_every_linear_layer_can_be_adapted(manager):
    per_layer = {name.split(".", 3)[3] for name in manager.targets}
    assert per_layer == {
        *(f"self_attn.{part}_proj" for part in "qkvo"),
        *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
    }
    assert len(manager.targets) == 3 * len(per_layer)


@pytest.fixture
def stages(written) -> list[AdapterManager]:
    """Managers of two pipeline stages; each adapter changes a layer of both."""
    meta = replace(CONTEXT, device=torch.device("meta"))
    models = [load_model(written, layers=layers) for layers in (range(1), range(1, 3))]
    whole = DecoderForCausalLM(describe(written.config), meta)
    return [AdapterManager(model, SampledTokens(), 2, 4, whole_model=whole) for model in models]


def test_a_stage_loads_its_own_modules_of_an_adapter(stages, manager):
    manager.load(ref("a"))
    for index, stage in enumerate(stages):
        assert stage.load(ref("a")) == 0
        (own,) = (name for name in SHAPES if f".{index}." in name)
        assert own in stage.targets
        changed = stage.targets[own].layer.lora
        whole = manager.targets[own].layer.lora
        assert stacks(whole)
        for name, stack in stacks(whole).items():
            assert torch.equal(stacks(changed)[name], stack)
            assert stack.count_nonzero() > 0


def stacks(lora) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(lora).items() if isinstance(value, torch.Tensor)}


def test_every_stage_refuses_an_adapter_with_a_module_that_none_has(stages):
    for wrong in ("model.layers.7.self_attn.q_proj", "model.layers.1.self_attn.other", "lm_head"):
        modules = dict(random_adapter("a").modules)
        modules[wrong] = modules[Q_PROJ]
        for stage in stages:
            stage.source.adapters["wrong"] = Adapter(modules, None, "wrong")
            with pytest.raises(AdapterError, match=r"changes 1 module\(s\) that a\w+ "):
                stage.load(ref("wrong"))


def test_every_stage_refuses_an_adapter_that_fits_another_stage_only_in_its_names(stages):
    modules = dict(random_adapter("a").modules)
    modules["model.layers.1.mlp.down_proj"] = modules[Q_PROJ]
    for stage in stages:
        stage.source.adapters["wrong"] = Adapter(modules, None, "wrong")
        with pytest.raises(AdapterError, match=r"does not fit the model at model\.layers\.1"):
            stage.load(ref("wrong"))
