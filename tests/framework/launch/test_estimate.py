"""The memory estimate before start-up equals what start-up does."""

import json

import pytest
from grid_parts import composed_engine

from quire import LLM
from quire.config import Settings
from quire.launch import estimate
from quire.launch.composing import compose_engine
from quire.launch.estimate import Fit, MemoryEstimate, estimate_memory
from quire.layers.parallel import SingleDevice
from quire.machine.free_memory import cache_bytes, free_host_bytes
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker.loading.weight_loading import held_weight_bytes
from quire.worker.memory import device_memory
from quire.worker.parts import WorkerParts
from quire.worker.stage import Stage
from quire.worker.worker import ModelWorker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("m"),
        "Gemma3ForCausalLM",
        num_hidden_layers=5,
        sliding_window=32,
        sliding_window_pattern=3,
        max_position_embeddings=2048,
    )


def estimated(checkpoint, **options) -> MemoryEstimate:
    settings = Settings.from_options({"model": str(checkpoint.folder)} | options)
    return estimate_memory(compose_engine(settings, load_plugins(settings.plugins)))


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_memory_bytes": 20_000_000},
        {"num_kv_blocks": 700, "block_size": 8},
        {"max_num_seqs": 2, "max_model_len": 300, "max_num_batched_tokens": 64},
    ],
)
def test_the_engine_has_the_blocks_and_the_length_of_the_estimate(folder, options):
    plan = estimated(folder, **options).plan
    with LLM(str(folder.folder), **options) as llm:
        assert llm.stats().num_blocks == plan.num_blocks - 1
        assert llm._running.composition.max_model_len == plan.max_model_len


def test_the_weights_are_what_the_checkpoint_holds(folder):
    assert estimated(folder).weight_bytes == folder.num_params * 4
    assert estimated(folder, dtype="bfloat16").weight_bytes == folder.num_params * 2


def test_what_is_free_is_shared_after_the_weights_are_off(folder):
    memory = estimated(folder)
    now = cache_bytes(free_host_bytes() - memory.weight_bytes)
    assert memory.cache_limit == pytest.approx(now, rel=0.3)  # others use this machine too
    assert "memory that is free on this cpu" in memory.limited_by


def test_the_cache_gets_its_share_of_what_the_weights_leave(folder, monkeypatch):
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: 10**9)
    monkeypatch.setattr(estimate, "weight_bytes", lambda *_: 4 * 10**8)
    memory = estimated(folder)
    assert (memory.cache_limit, memory.problem) == (cache_bytes(6 * 10**8), None)
    monkeypatch.setattr(estimate, "weight_bytes", lambda *_: 10**9 - 1)
    too_large = estimated(folder, num_kv_blocks=700)
    assert "are free on this cpu beside the weights" in too_large.problem


def test_replicas_share_what_is_free_and_each_has_the_weights(folder, monkeypatch):
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: 10**9)
    monkeypatch.setattr(estimate, "weight_bytes", lambda *_: 4 * 10**8)
    memory = estimated(folder, data_parallel_size=2)
    assert memory.cache_limit == cache_bytes(2 * 10**8, 2)
    assert memory.problem is None
    assert "the weights take" in estimated(folder, data_parallel_size=3).problem


def test_a_cache_larger_by_a_byte_than_what_is_free_is_the_problem(folder, monkeypatch):
    monkeypatch.setattr(estimate, "weight_bytes", lambda *_: 10**8)
    needed = 10**8 + estimated(folder, num_kv_blocks=700).plan.num_bytes
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: needed)
    assert estimated(folder, num_kv_blocks=700).problem is None
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: needed - 1)
    assert "enough for 699 blocks" in estimated(folder, num_kv_blocks=700).problem


def test_each_group_says_what_it_costs(folder):
    memory = estimated(folder, num_kv_blocks=700, max_num_batched_tokens=64)
    # 4 windows and 1 full layer, in groups of 1. A page: K and V * 16 tokens * 2 heads * 16 * 4.
    page = 2 * 16 * 2 * 16 * 4
    windows, (full,) = memory.groups[:4], memory.groups[4:]
    assert {group.spec for group in windows} == {"sliding_window (window 32)"}
    assert (full.spec, full.num_layers, full.padding_bytes) == ("full_attention", 1, 0)
    assert full.page_bytes == page
    assert full.bytes_a_token == page // 16
    # Under a window of 32 and a step of 64, 95 tokens, lie 1 + ceil(94 / 16) = 7 blocks.
    assert {group.max_blocks for group in windows} == {7}
    assert full.max_blocks == 128


def test_so_many_requests_fit_as_it_says(folder):
    memory = estimated(folder, num_kv_blocks=700, max_num_batched_tokens=64)
    assert [fit.num_tokens for fit in memory.fits] == [1024, 2048], "the longest is among them"
    for fit in memory.fits:
        computed = fit.num_tokens - 1
        decoding = sum(g.spec.max_blocks_held(computed, 1) for g in memory.plan.groups)
        largest = sum(g.spec.max_blocks_held(computed, 64) for g in memory.plan.groups)
        assert largest + (fit.num_requests - 1) * decoding <= 699
        assert largest + fit.num_requests * decoding > 699


def test_a_cache_that_does_not_fit_is_a_problem_with_a_way_out(folder):
    memory = estimated(folder, kv_cache_memory_bytes=1000)
    assert memory.plan is None
    assert "set kv_cache_memory_bytes" in memory.problem
    assert memory.fits == ()
    longer = estimated(folder, num_kv_blocks=20, max_model_len=2048)
    assert "max_model_len to at most" in longer.problem


def test_weights_that_do_not_fit_are_the_problem(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "m", "LlamaForCausalLM")
    config = tmp_path / "m" / "config.json"
    huge = json.loads(config.read_text()) | {"vocab_size": 2**31 - 1}
    config.write_text(json.dumps(huge))
    memory = estimated(checkpoint, load_format="dummy", num_kv_blocks=10)
    assert memory.plan is None
    assert "are free on this cpu; use a smaller dtype" in memory.problem


def test_a_gpu_that_cannot_be_asked_leaves_the_size_open(folder):
    memory = estimated(folder, device="cuda", kv_cache_memory_bytes=20_000_000)
    assert memory.plan.num_bytes <= 20_000_000


@pytest.fixture(scope="module")
def five_layers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("five")
    return write_checkpoint(folder, "LlamaForCausalLM", num_hidden_layers=5).folder


def grid_estimate(registries, folder, **options) -> MemoryEstimate:
    return estimate_memory(composed_engine(registries, folder, **options))


def test_every_rank_is_estimated_with_its_layers_and_heads(tmp_path, quire_registries):
    write_checkpoint(tmp_path, "LlamaForCausalLM", num_hidden_layers=4)
    sizes = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "num_kv_blocks": 65}
    memory = grid_estimate(quire_registries, tmp_path, **sizes)
    assert [(rank.rank, rank.stage, rank.tp_rank) for rank in memory.ranks] == [
        (4 * stage + tp_rank, stage, tp_rank) for stage in (0, 1) for tp_rank in range(4)
    ]
    assert [rank.layers for rank in memory.ranks[3:5]] == [range(2), range(2, 4)]
    # Of 4 heads and 2 KV heads each rank has one. A block: 2 layers * K and V * 16 tokens * 16 * 4.
    assert {(rank.num_heads, rank.num_kv_heads) for rank in memory.ranks} == {(1, 1)}
    assert {(rank.num_blocks, rank.kv_bytes) for rank in memory.ranks} == {(64, 65 * 2 * 2048)}


def test_one_rank_is_the_whole_model(folder):
    memory = estimated(folder, num_kv_blocks=700)
    (rank,) = memory.ranks
    assert (rank.weight_bytes, rank.layers) == (memory.weight_bytes, range(5))
    assert (rank.kv_bytes, rank.num_blocks) == (memory.plan.num_bytes, 699)
    assert (rank.num_heads, rank.num_kv_heads) == (4, 2)


def test_ranks_share_the_memory_of_a_host(folder, quire_registries, monkeypatch):
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: 10**9)
    monkeypatch.setattr(estimate, "weight_bytes", lambda _, tp_size, stage: 10**8 * (1 + stage))
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    memory = grid_estimate(quire_registries, folder.folder, **sizes)
    assert memory.cache_limit == cache_bytes(4 * 10**8) // 4, "without 2 * (100 + 200) MB"
    monkeypatch.setattr(estimate, "weight_bytes", lambda _, tp_size, stage: 26 * 10**7)
    problem = grid_estimate(quire_registries, folder.folder, **sizes).problem
    assert problem.startswith("the weights take 1,040,000,000 bytes, and 1,000,000,000 are free")


NO_LINK = object()  # nothing is sent


class FirstOfTwo(SingleDevice):
    """The first of two ranks that share each layer; nothing is computed."""

    size = 2


def test_a_worker_takes_no_more_of_a_host_than_its_part(five_layers, quire_registries, monkeypatch):
    monkeypatch.setattr(device_memory, "free_host_bytes", lambda: 10**9)
    its = composed_engine(quire_registries, five_layers, tensor_parallel_size=2)
    parts = WorkerParts.load(its.settings, its.composition, its.plugins.registries)
    info = ModelWorker(its.settings, parts, FirstOfTwo(), ranks_on_node=2).load()
    assert info.kv_bytes == [cache_bytes(10**9) // 2]


def test_the_caches_of_all_ranks_must_fit_a_host(five_layers, quire_registries, monkeypatch):
    monkeypatch.setattr(estimate, "weight_bytes", lambda *_: 10**7)
    sizes = {"pipeline_parallel_size": 2, "pipeline_layers": [4, 1], "num_kv_blocks": 700}
    planned = grid_estimate(quire_registries, five_layers, **sizes).ranks
    needed = sum(rank.kv_bytes + 10**7 for rank in planned)
    assert planned[0].kv_bytes == 4 * planned[1].kv_bytes
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: needed)
    assert grid_estimate(quire_registries, five_layers, **sizes).problem is None
    monkeypatch.setattr(estimate, "free_host_bytes", lambda: needed - 1)
    problem = grid_estimate(quire_registries, five_layers, **sizes).problem
    assert "enough for 699 blocks; set a smaller num_kv_blocks" in problem


def test_the_estimate_is_that_of_the_fullest_rank(five_layers, quire_registries):
    sizes = {"pipeline_parallel_size": 2, "pipeline_layers": [1, 4], "num_kv_blocks": 700}
    memory = grid_estimate(quire_registries, five_layers, **sizes)
    first, last = memory.ranks
    assert (memory.weight_bytes, memory.plan.num_bytes) == (last.weight_bytes, last.kv_bytes)
    assert sum(group.num_layers for group in memory.groups) == 4
    assert first.kv_bytes < last.kv_bytes


def test_full_attention_alone_by_hand(tmp_path):
    checkpoint = write_checkpoint(tmp_path / "m", "LlamaForCausalLM", max_position_embeddings=4096)
    memory = estimated(checkpoint, num_kv_blocks=1001)
    (group,) = memory.groups
    # 3 layers * K and V * 2 heads * 16 elements * 4 bytes = 768 bytes a token.
    assert (group.bytes_a_token, group.page_bytes, group.padding_bytes) == (768, 768 * 16, 0)
    # 1,000 blocks: 1,024 tokens are 1,023 computed, 64 blocks; 4,096 are 256 blocks.
    assert memory.fits == (Fit(1024, 15), Fit(4096, 3))


@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_ranks_take_what_was_estimated_for_packed_weights(
    tmp_path, quire_registries, name, is_tied
):
    """A tied head is packed on the last stage, and the first has the embedding as it was."""
    sizes = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768, "head_dim": 64}
    sizes |= {"max_position_embeddings": 32, "tie_word_embeddings": is_tied}
    write_checkpoint(tmp_path, "Qwen3ForCausalLM", **sizes)
    grid = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "quantization": name}
    its = composed_engine(quire_registries, tmp_path, **grid)
    parts = WorkerParts.load(its.settings, its.composition, its.plugins.registries)
    for rank in estimate_memory(its).ranks[::2]:
        link = {"next": NO_LINK} if rank.stage == 0 else {"previous": NO_LINK}
        stage = Stage(index=rank.stage, count=2, layers=rank.layers, **link)
        worker = ModelWorker(its.settings, parts, FirstOfTwo(), stage)
        worker.load()
        held = held_weight_bytes(worker._model)
        assert held == pytest.approx(rank.weight_bytes, rel=0.03)


@pytest.mark.parametrize("is_tied", [False, True], ids=["own head", "tied head"])
@pytest.mark.parametrize("name", ["none", "int8", "int4"])
def test_packed_weights_take_what_was_estimated(tmp_path, name, is_tied):
    sizes = {"vocab_size": 1024, "hidden_size": 256, "intermediate_size": 768}
    sizes["max_position_embeddings"] = 32  # the table of rotary angles is no weight
    checkpoint = write_checkpoint(
        tmp_path, "Qwen3ForCausalLM", tie_word_embeddings=is_tied, head_dim=64, **sizes
    )
    settings = Settings.from_options({"model": str(tmp_path), "quantization": name})
    composed = compose_engine(settings, load_plugins(settings.plugins))
    registries = composed.plugins.registries
    parts = WorkerParts.load(composed.settings, composed.composition, registries)
    worker = ModelWorker(composed.settings, parts, SingleDevice())
    expected = estimate_memory(composed).weight_bytes
    worker.load()
    held = held_weight_bytes(worker._model)
    if name == "none":  # torch keeps weights as small as these twice
        assert expected < held < 2.02 * expected
    else:
        assert held == pytest.approx(expected, rel=0.03)
    assert expected < checkpoint.num_params * (4.1 if name == "none" else 2.5)
