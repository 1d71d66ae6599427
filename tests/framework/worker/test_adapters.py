"""Adapters take turns in their places, and a wrong one changes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_parts import load_model, logits_of, random_tokens

from quire.errors import AdapterError
from quire.interfaces.lora import Adapter, AdapterModule, LoRASource
from quire.messages import AdapterRef
from quire.testing.checkpoints import write_checkpoint
from quire.worker.adapters import AdapterManager

Q_PROJ = "model.layers.0.self_attn.q_proj"
SHAPES = {Q_PROJ: (64, 64), "model.layers.1.mlp.down_proj": (64, 112)}
TOKENS = random_tokens(6)


class Drawn(LoRASource):
    """Adapters drawn from the name of their folder; what `adapters` holds goes before."""

    def __init__(self) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.num_read = 0

    def resolve(self, name: str) -> Path:
        return Path(name)

    def content_hash(self, folder: Path) -> str:
        return folder.name

    def read(self, folder: Path, max_rank: int) -> Adapter:
        self.num_read += 1
        return self.adapters.get(folder.name) or drawn_adapter(folder.name)


def drawn_adapter(name: str, rank: int = 2) -> Adapter:
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
def manager(written):
    torch.set_num_threads(1)
    return AdapterManager(load_model(written), Drawn(), 2, 4)


def ref(name: str, path: str | None = None) -> AdapterRef:
    return AdapterRef(name, path or name, content_hash=path or name)


def logits(manager: AdapterManager, index: int) -> torch.Tensor:
    return logits_of(manager.model, TOKENS, adapters=manager.batch([index], [len(TOKENS)]))


def test_an_adapter_is_read_once(manager):
    assert manager.load(ref("a")) == manager.load(ref("a"))
    assert manager.source.num_read == 1


def test_the_least_recently_used_adapter_makes_room(manager):
    first, second = manager.load(ref("a")), manager.load(ref("b"))
    manager.load(ref("a"))
    assert manager.load(ref("c")) == second
    assert manager.load(ref("a")) == first
    assert manager.source.num_read == 3


def test_an_adapter_in_use_keeps_its_place(manager):
    first, second = manager.load(ref("a")), manager.load(ref("b"))
    assert manager.load(ref("c"), in_use={ref("a"), ref("c")}) == second
    with pytest.raises(AdapterError, match="all 2 are in use"):
        manager.load(ref("d"), in_use={ref("a"), ref("c"), ref("d")})
    assert manager.load(ref("a")) == first


def test_a_place_forgets_the_adapter_before(manager):
    index = manager.load(ref("a"))
    expected = logits(manager, index)
    small = Adapter({Q_PROJ: drawn_adapter("small", 1).modules[Q_PROJ]}, None, "small")
    manager.source.adapters["small"] = small
    manager.load(ref("b"))
    again = manager.load(ref("small"))
    assert again == index
    after_small = logits(manager, index)
    manager.load(ref("b"))
    manager.load(ref("a"), in_use={ref("b")})
    torch.testing.assert_close(logits(manager, index), expected)
    assert not torch.allclose(after_small, expected, atol=1e-3)


def test_one_content_under_two_names_has_one_place(manager):
    assert manager.load(ref("a", "same")) == manager.load(ref("b", "same"))


def test_one_name_with_new_content_is_another_adapter(manager):
    old = logits(manager, manager.load(ref("a", "one")))
    new = logits(manager, manager.load(ref("a", "two")))
    assert not torch.allclose(old, new, atol=1e-3)


def test_files_that_changed_since_are_refused(manager):
    manager.source.adapters["a"] = drawn_adapter("something else")
    with pytest.raises(AdapterError, match="have changed"):
        manager.load(ref("a"))


def test_an_adapter_that_fails_half_way_leaves_nothing_in_its_place(manager, monkeypatch):
    base = logits_of(manager.model, TOKENS)
    last = manager.targets["model.layers.1.mlp.down_proj"].layer
    set_adapter = last.set_adapter

    def fails(index, parts):
        if parts:
            raise RuntimeError("no more")
        set_adapter(index, parts)

    monkeypatch.setattr(last, "set_adapter", fails)
    with pytest.raises(RuntimeError, match="no more"):
        manager.load(ref("a"))
    torch.testing.assert_close(logits(manager, 0), base, rtol=0, atol=0)
    monkeypatch.undo()
    index = manager.load(ref("a"))
    assert index == 0, "the place is free"
    assert not torch.allclose(logits(manager, index), base, atol=1e-3)


def test_a_dropped_adapter_leaves_the_base_model(manager):
    base = logits_of(manager.model, TOKENS)
    index = manager.load(ref("a"))
    assert not torch.allclose(logits(manager, index), base, atol=1e-3)
    assert manager.drop(ref("a"))
    assert not manager.drop(ref("a"))
    torch.testing.assert_close(logits(manager, index), base, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("module", "shapes", "named"),
    [
        ("model.layers.9.self_attn.q_proj", ((2, 64), (64, 2)), "does not have"),
        ("model.embed_tokens", ((2, 320), (64, 2)), "does not have"),
        ("lm_head", ((2, 64), (320, 2)), "does not have"),
        (Q_PROJ, ((2, 128), (64, 2)), r"\[2, 128\]"),
        ("model.layers.0.self_attn.k_proj", ((2, 64), (64, 2)), r"\[32, 2\]"),
        (Q_PROJ, ((5, 64), (64, 5)), "max_lora_rank is 4"),
    ],
)
def test_an_adapter_of_another_base_is_refused_and_nothing_changes(manager, module, shapes, named):
    index = manager.load(ref("a"))
    before = logits(manager, index)
    wrong = AdapterModule(torch.ones(shapes[0]), torch.ones(shapes[1]), 1.0)
    good = drawn_adapter("wrong")
    manager.source.adapters["wrong"] = replace(good, modules={**good.modules, module: wrong})
    with pytest.raises(AdapterError, match=named) as caught:
        manager.load(ref("wrong"))
    assert module in str(caught.value)
    torch.testing.assert_close(logits(manager, index), before, rtol=0, atol=0)
    assert manager.load(ref("b")) != index


def test_a_batch_without_adapters_is_none(manager):
    assert manager.batch([-1, -1], [3, 1]) is None
    assert manager.batch([], []) is None


def test_a_batch_knows_its_rows(manager):
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
