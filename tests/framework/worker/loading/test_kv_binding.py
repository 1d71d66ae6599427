"""Layers of several KV groups share memory, and compute what they would compute alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from quire.config import Settings
from quire.engine.kv_cache.kv_plan import StageMemory, fixed_plan, plan_stages
from quire.errors import PluginLoadError
from quire.interfaces.kv_cache import KVLayer, KVPlan
from quire.interfaces.model import Model
from quire.launch.composing import compose_engine
from quire.layers import Attention, LayerContext, SingleDevice
from quire.messages import NewBlocks, ScheduledRequest, SlotAssignment, StepPlan
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker.parts import WorkerParts
from quire.worker.worker import ModelWorker
from quire_kv_cache_specs.full_attention import FullAttentionSpec
from quire_kv_cache_specs.sliding_window import SlidingWindowSpec

WINDOW = 6
BLOCK = 4
HIDDEN, VOCAB = 24, 320
CONTEXT = LayerContext(dtype=torch.float32, device=torch.device("cpu"))
# Name -> key/value heads, head size, window. Pages of 4 tokens: 256, 384, 256, 128 and 512 bytes.
LAYERS = {
    "full.0": (2, 4, None),
    "window.0": (1, 12, WINDOW),
    "window.1": (2, 4, WINDOW),
    "full.1": (1, 4, None),
    "window.2": (4, 4, WINDOW),
}


class MixedModel(nn.Module, Model):
    """Five attention layers of several sizes after each other, with random projections."""

    def __init__(self) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(7)
        self.embedding = torch.randn(VOCAB, HIDDEN, generator=rng)
        self.full, self.window = nn.ModuleDict(), nn.ModuleDict()
        self.projections, self.outputs, self.seen = [], [], []
        self.stage = tuple(LAYERS)  # the layers that it computes
        for name, (num_kv_heads, head_dim, window) in LAYERS.items():
            layer = Attention(
                name, 4, num_kv_heads, head_dim, head_dim**-0.5, CONTEXT, sliding_window=window
            )
            parent, _, child = name.partition(".")
            {"full": self.full, "window": self.window}[parent][child] = layer
            sizes = (4 * head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)
            self.projections.append(
                [torch.randn(HIDDEN, size, generator=rng) / HIDDEN**0.5 for size in sizes]
            )
            self.outputs.append(torch.randn(4 * head_dim, HIDDEN, generator=rng))

    def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
        hidden_states = self.embedding[input_ids] + positions.unsqueeze(1).sin()
        for name, weights, output in zip(LAYERS, self.projections, self.outputs, strict=True):
            if name not in self.stage:
                continue
            layer = self.get_submodule(name)
            q, k, v = (hidden_states @ weight for weight in weights)
            shaped = (x.unflatten(1, (-1, layer.head_dim)) for x in (q, k, v))
            hidden_states = hidden_states + layer(*shaped, batch) @ output
            hidden_states = hidden_states / hidden_states.norm(dim=1, keepdim=True)
        self.seen.append(hidden_states)
        return hidden_states

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        return hidden_states @ self.embedding.T


def spec_of(name: str, *, keeps_all: bool = False):
    num_kv_heads, head_dim, window = LAYERS[name]
    if window is None or keeps_all:
        layer = KVLayer(name, "full_attention", num_kv_heads, head_dim)
        return FullAttentionSpec(layer, BLOCK, "float32")
    layer = KVLayer(name, "sliding_window", num_kv_heads, head_dim, (("window", window),))
    return SlidingWindowSpec(layer, BLOCK, "float32")


@pytest.fixture
def worker(tmp_path) -> ModelWorker:
    folder = write_checkpoint(tmp_path / "m", "LlamaForCausalLM").folder
    settings = Settings.from_options({"model": str(folder), "max_num_seqs": 4})
    plugins = load_plugins(settings.plugins)
    composition = compose_engine(settings, plugins).composition
    parts = WorkerParts.load(settings, composition, plugins.registries)
    description = replace(
        composition.description,
        hidden_size=HIDDEN,
        kv_layers=tuple(spec_of(name).layer for name in LAYERS),
    )
    composition = replace(composition, description=description, layer_backends=(0,) * len(LAYERS))
    worker = ModelWorker(settings, replace(parts, composition=composition), SingleDevice())
    worker._model = MixedModel()
    return worker


def with_length(plan: KVPlan) -> KVPlan:
    return KVPlan(plan.num_blocks, plan.groups, plan.tensors, max_model_len=64)


class Run:
    """Two requests on a worker; blocks are allocated from one pool of ids, in random order."""

    def __init__(self, worker: ModelWorker, plan: KVPlan) -> None:
        self.worker, self.plan, self.plan_id = worker, plan, 0
        rng = torch.Generator().manual_seed(3)
        self.free = (torch.randperm(plan.num_blocks - 1, generator=rng) + 1).tolist()
        self.tables = [[[] for _ in plan.groups] for _ in range(2)]
        self.computed = [0, 0]
        self.runner = worker.allocate([plan])

    def start(self, prompts: list[list[int]]) -> None:
        assignments = [
            SlotAssignment(
                slot=slot,
                token_ids=prompt,
                num_computed_tokens=0,
                block_ids=[[] for _ in self.plan.groups],
                num_prompt_tokens=len(prompt),
                fields={f.name: f.worker_default for f in self.worker.composition.sampler_fields},
                seed=0,
                child=0,
            )
            for slot, prompt in enumerate(prompts)
        ]
        self.step([], assignments)

    def step(self, scheduled: list[tuple[int, int]], assignments=()) -> Tensor:
        added = []
        for slot, count in scheduled:
            self.computed[slot] += count
            for group, table in enumerate(self.tables[slot]):
                needed = -(-self.computed[slot] // BLOCK) - len(table)
                ids = [self.free.pop() for _ in range(needed)]
                table += ids
                added.append(NewBlocks(slot, group, ids))
        self.plan_id += 1
        requests = [ScheduledRequest(slot, count, 0) for slot, count in scheduled]
        self.runner.execute(
            StepPlan(
                plan_id=self.plan_id,
                requests=requests,
                assignments=list(assignments),
                new_blocks=added,
            )
        )
        self.runner.sample(self.plan_id, [])
        assert self.runner.collect(self.plan_id).results == []
        return self.worker._model.seen[-1] if scheduled else torch.empty(0)


PROMPTS = [list(range(10, 50)), list(range(100, 130))]
STEPS = [[(0, 13), (1, 5)], [(1, 1)], [(0, 20), (1, 10)], [(0, 1), (1, 1)], [(1, 13), (0, 6)]]


def hidden_states_of(worker: ModelWorker, plan: KVPlan) -> list[Tensor]:
    run = Run(worker, plan)
    run.start(PROMPTS)
    return [run.step(scheduled) for scheduled in STEPS]


def alone(worker: ModelWorker) -> list[Tensor]:
    """With a cache of its own for every layer, nothing shared and nothing padded."""
    specs = [spec_of(name, keeps_all=True) for name in LAYERS]
    return hidden_states_of(worker, with_length(fixed_plan(specs, 60)))


def test_shared_and_padded_memory_changes_no_output(worker):
    expected = alone(worker)
    plan = with_length(fixed_plan([spec_of(name) for name in LAYERS], 120))
    assert [group.layer_names for group in plan.groups] == [
        ("full.0", "full.1"), ("window.0", "window.2"), ("window.1",),
    ]  # fmt: skip
    assert plan.padded_layers
    outputs = hidden_states_of(worker, plan)
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_group_has_a_backend_for_each_shape_of_its_heads(worker):
    plan = with_length(fixed_plan([spec_of(name) for name in LAYERS], 20))
    runner = worker.allocate([plan])
    # full.0 has 2 heads of 4 and full.1 one; window.0 and window.2 differ too; window.1 is alone.
    assert runner.tables.backend_groups == (0, 0, 1, 1, 2)
    # The longest page has 512 bytes; whole rows of 16 and of 48 bytes fit into 528.
    assert [backend.shape.page_bytes for backend in runner.backends] == [528] * 5
    indexes = {name: runner.model.get_submodule(name).backend_index for name in LAYERS}
    assert indexes == {"full.0": 0, "full.1": 1, "window.0": 2, "window.2": 3, "window.1": 4}


def test_layers_of_one_tensor_see_the_same_bytes(worker):
    plan = with_length(fixed_plan([spec_of(name) for name in LAYERS], 20))
    worker.allocate([plan])
    model = worker._runner.model
    caches = {name: model.get_submodule(name)._kv_cache for name in LAYERS}
    for cache in caches.values():
        cache.zero_()
    caches["full.0"][7].fill_(1)
    assert caches["window.0"][7].any()
    assert caches["window.1"][7].any()
    assert not caches["full.1"].any()
    assert not caches["window.2"].any()
    assert not caches["window.0"][:7].any()
    assert not caches["window.0"][8:].any()


def test_a_table_is_as_long_as_the_request_even_where_windows_are_freed(worker):
    plan = with_length(fixed_plan([spec_of(name) for name in LAYERS], 20))
    worker.allocate([plan])
    tables = worker._runner.tables
    assert [table.shape[1] for table in tables.block_tables] == [64 // BLOCK] * 3


def test_a_stage_without_layers_of_a_group_binds_the_others(worker):
    names = list(LAYERS)
    stages = [StageMemory([spec_of(n) for n in part], 10**6) for part in (names[:3], names[3:])]
    last = with_length(plan_stages(stages, 64, 4)[1])
    assert [group.layer_names for group in last.groups] == [("full.1",), ("window.2",), ()]
    worker._model.stage = names[3:]
    worker.allocate([last])
    assert worker._runner.tables.backend_groups == (0, 1)


def test_a_model_that_keeps_nothing_needs_no_memory(worker):
    class Feedforward(nn.Module, Model):
        def forward(self, input_ids, positions, batch, inputs_embeds=None, stage_input=None):
            assert batch.attention == []
            self.seen = [input_ids.unsqueeze(1).float()]
            return self.seen[0].repeat(1, HIDDEN)

        def compute_logits(self, hidden_states):
            return hidden_states[:, :1].repeat(1, VOCAB)

    worker._model = Feedforward()
    run = Run(worker, with_length(fixed_plan([], 1)))
    run.start([[5, 6, 7], [8]])
    assert run.step([(0, 2), (1, 1)]).flatten().tolist() == [5, 6, 8]


def test_a_layer_that_the_model_does_not_have_is_named(worker):
    layer = KVLayer("full.9", "full_attention", 2, 4)
    plan = with_length(fixed_plan([FullAttentionSpec(layer, BLOCK, "float32")], 20))
    with pytest.raises(PluginLoadError, match=r"are not modules of .*Attention: full\.9"):
        worker.allocate([plan])
