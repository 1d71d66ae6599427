"""A step of the largest size runs before there is a cache, and what it takes is counted."""

import gc
import logging
from dataclasses import fields, replace

import pytest
import torch
from allocation_meter import AllocationMeter
from cpp_compilers import NEEDS_COMPILER

from quire.compose.composition import Decision
from quire.compose.sizes.memory_profile import GRAPH_BYTES, least_cache_bytes
from quire.config import Settings
from quire.errors import CapacityError
from quire.interfaces.attention import AttentionBackend
from quire.interfaces.model import ForwardBatch
from quire.launch.composing import compose_engine
from quire.launch.profile_estimate import estimate_profile
from quire.layers import SingleDevice
from quire.layers.attention.attention_layer import Attention
from quire.machine.nvml import DeviceMemory
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.threaded_ranks import ThreadedLink
from quire.worker.batch.device_inputs import DeviceInputs
from quire.worker.memory.device_memory import enough_memory
from quire.worker.memory.largest_step import BackendKind, FusingProfilingBackend, LargestStep
from quire.worker.memory.profiling import (
    LoadedModel,
    _device_inputs,
    _slot_tables,
    backend_kinds,
    gpu_cache_bytes,
    measure,
    workspace_bytes,
)
from quire.worker.parts import WorkerParts
from quire.worker.stage import WHOLE_MODEL, Stage
from quire.worker.worker import ModelWorker

CPU = torch.device("cpu")
KERNELS = {"kernels": "triton", "attention_backend": "triton"}
STAGES = {"pipeline_parallel_size": 2}
STEP = {"max_num_batched_tokens": 64, "max_num_seqs": 8}


def loaded(
    folder, architecture="Qwen3ForCausalLM", sizes=(), stage=WHOLE_MODEL, **options
) -> LoadedModel:
    if not (folder / "config.json").exists():
        write_checkpoint(folder, architecture, **dict(sizes))
    settings = Settings.from_options({"model": str(folder)} | STEP | options)
    composed = compose_engine(settings, load_plugins(settings.plugins))
    parts = WorkerParts.load(settings, composed.composition, composed.plugins.registries)
    worker = ModelWorker(settings, parts, SingleDevice(), stage)
    worker.load()
    return worker._loaded(worker._model)


def with_graphs(model, num_requests):
    graphs = Decision(num_requests, "asked for")
    composition = replace(model.composition, cuda_graphs=graphs)
    return replace(model, parts=replace(model.parts, composition=composition))


@pytest.mark.parametrize("enable_lora", [False, True], ids=["", "lora"])
@pytest.mark.parametrize(
    "architecture",
    ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM"],
)
def test_the_step_runs_through_every_model(tmp_path, architecture, enable_lora):
    model = loaded(tmp_path, architecture, enable_lora=enable_lora)
    profile = measure(model, AllocationMeter())
    hidden, vocabulary, float_bytes = 64, 320, 4
    assert profile.forward_bytes > 64 * hidden * float_bytes
    assert profile.sampling_bytes > 2 * 8 * vocabulary * float_bytes, "the logits and a copy"
    assert profile.weight_bytes == 10**6
    assert profile.other_bytes == 10**7
    assert profile.graph_bytes == 0, "on a CPU nothing is captured"
    layers = [layer for layer in model.model.modules() if isinstance(layer, Attention)]
    assert len(layers) == len(model.composition.description.kv_layers)
    assert all(layer.backend_index == -1 for layer in layers), "unbound again"
    with pytest.raises(RuntimeError, match="before bind"):
        layers[0]._bound(ForwardBatch(attention=[]))


@NEEDS_COMPILER
def test_log_probabilities_are_counted_where_no_filter_takes_more(tmp_path):
    model = loaded(tmp_path, samplers=["cpu_gumbel"])
    logits_bytes = 8 * 320 * 4
    assert measure(model, AllocationMeter()).sampling_bytes > 3 * logits_bytes, "a copy, and these"


@pytest.mark.parametrize("enable_lora", [False, True], ids=["", "lora"])
def test_the_step_runs_with_the_kernels_of_a_gpu(tmp_path, enable_lora):
    options = {"kernels": "triton", "attention_backend": "triton", "enable_lora": enable_lora}
    few = {"max_num_batched_tokens": 12, "max_num_seqs": 3}
    model = loaded(tmp_path, sizes={"head_dim": 32}, **few, **options)
    assert model.composition.cuda_graphs.value == 3
    profile = measure(model, AllocationMeter())
    assert profile.forward_bytes > 12 * 64 * 4
    assert profile.sampling_bytes > 2 * 3 * 320 * 4
    num_graphs = 3 * 2 * (2 if enable_lora else 1)  # sizes 1, 2 and 3, and their sampling
    beside_the_step = profile.graph_bytes - num_graphs * GRAPH_BYTES
    assert 2 * 3 * 320 * 4 < beside_the_step < GRAPH_BYTES, "its logits, and a buffer for them"
    kinds = backend_kinds(model).values()
    assert profile.workspace_bytes == next(
        kind.backend_class.workspace_bytes(kind.shape) for kind in kinds
    )


def test_what_a_step_takes_grows_with_its_size(tmp_path):
    small = measure(loaded(tmp_path), AllocationMeter())
    long = measure(loaded(tmp_path, max_num_batched_tokens=256), AllocationMeter())
    assert long.forward_bytes == pytest.approx(4 * small.forward_bytes, rel=0.1)
    assert long.sampling_bytes == pytest.approx(small.sampling_bytes, rel=0.01)
    wide = measure(loaded(tmp_path, max_num_seqs=32), AllocationMeter())
    assert wide.sampling_bytes == pytest.approx(4 * small.sampling_bytes, rel=0.1)


def test_a_step_has_no_more_tokens_than_its_requests_can_have(tmp_path):
    options = {"max_model_len": 16, "max_num_seqs": 2}
    few = measure(loaded(tmp_path, max_num_batched_tokens=32, **options), AllocationMeter())
    many = measure(loaded(tmp_path, max_num_batched_tokens=1024, **options), AllocationMeter())
    assert many.forward_bytes == few.forward_bytes


@pytest.mark.parametrize(
    "sizes",
    [
        {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 4000},
        {"hidden_size": 512, "intermediate_size": 512, "head_dim": 128, "vocab_size": 1000},
    ],
    ids=["wide MLP", "wide attention"],
)
def test_the_estimate_is_close_to_what_is_measured(tmp_path, sizes):
    model = loaded(tmp_path, sizes=sizes, kernels="torch")  # a GPU has no native ones
    measured = measure(model, AllocationMeter())
    estimated = estimate_profile(
        model.settings, model.composition, 10**6, model.specs, DeviceMemory(10**9, 10**9)
    )
    assert estimated.is_estimated
    assert 0.8 < estimated.forward_bytes / measured.forward_bytes < 1.25
    assert 0.8 < estimated.sampling_bytes / measured.sampling_bytes < 1.5


def test_the_cache_gets_the_remaining_memory_and_the_log_lists_the_rest(tmp_path, caplog):
    model = loaded(tmp_path, gpu_memory_utilization=0.5)
    caplog.set_level(logging.INFO, "quire")
    num_bytes = gpu_cache_bytes(model, AllocationMeter())
    profile = measure(model, AllocationMeter())
    assert num_bytes == profile.kv_bytes(0.5)
    assert 4.5e8 < num_bytes < 5e8 - 10**6 - 10**7
    (line,) = [record.message for record in caplog.records if "memory of cpu" in record.message]
    for part in ("1.00 GB", "others 0.01", "weights 0.00", "largest step", "KV cache 0.4"):
        assert part in line


def test_a_cache_that_does_not_fit_names_the_utilization_that_would(tmp_path):
    model = loaded(tmp_path, gpu_memory_utilization=0.01, max_model_len=512)
    meter = AllocationMeter(total=10**8, held=10**6, others=10**7)
    with pytest.raises(CapacityError, match="set gpu_memory_utilization to at least 0") as caught:
        gpu_cache_bytes(model, meter)
    utilization = float(str(caught.value).rpartition("at least ")[2])
    again = loaded(tmp_path, gpu_memory_utilization=utilization, max_model_len=512)
    assert gpu_cache_bytes(again, meter) >= least_cache_bytes(again.specs, again.settings)
    smaller = loaded(
        tmp_path, gpu_memory_utilization=round(utilization - 0.01, 2), max_model_len=512
    )
    with pytest.raises(CapacityError):
        gpu_cache_bytes(smaller, meter)


def test_a_given_number_of_blocks_is_not_argued_with(tmp_path):
    model = loaded(tmp_path, gpu_memory_utilization=0.01, num_kv_blocks=10)
    assert gpu_cache_bytes(model, AllocationMeter()) == 0


def test_workspaces_of_backends_count_once_for_each_group(tmp_path):
    class Keeping(AttentionBackend):
        @classmethod
        def workspace_bytes(cls, shape):
            return 1000 * shape.max_num_seqs + shape.block_size

    # 4 windows and 2 full layers: groups of 2.
    model = loaded(tmp_path, "Gemma3ForCausalLM")
    kinds = backend_kinds(model)
    assert len(kinds) == 6
    assert workspace_bytes(model.specs, kinds) == 0, "torch_sdpa keeps nothing"
    keeping = {name: BackendKind(Keeping, kind.shape) for name, kind in kinds.items()}
    assert workspace_bytes(model.specs, keeping) == 3 * (8 * 1000 + 16)


def test_a_backend_that_fuses_is_stood_in_for_by_one_that_does(tmp_path, monkeypatch):
    model = loaded(tmp_path)
    seen = []
    forward = FusingProfilingBackend.forward_rotary

    def noted(self, qkv, *rest):
        output = forward(self, qkv, *rest)
        seen.append((tuple(qkv.shape), tuple(output.shape)))
        return output

    monkeypatch.setattr(FusingProfilingBackend, "forward_rotary", noted)
    kind = next(iter(backend_kinds(model).values())).backend_class
    monkeypatch.setattr(kind, "fuses_rotary", True)
    measure(model, AllocationMeter())
    assert ((64, 4 + 2 * 2, 16), (64, 4, 16)) in seen


def test_what_cuda_graphs_will_take_is_set_aside(tmp_path):
    model = loaded(tmp_path)
    captured = with_graphs(model, 4)
    profile = measure(captured, AllocationMeter())
    logits, num_graphs = 4 * 320 * 4, 3 * 2  # sizes 1, 2 and 4, and their sampling
    beside_the_step = profile.graph_bytes - num_graphs * GRAPH_BYTES
    assert 2 * logits < beside_the_step < 100 * logits


class CountsInputs(AllocationMeter):
    """Holds a million bytes more for all that gathers a step's inputs."""

    def held_bytes(self):
        gathering = [each for each in gc.get_objects() if type(each) is DeviceInputs]
        return super().held_bytes() + 10**6 * len(gathering)


def test_the_buffers_of_a_steps_inputs_are_counted(tmp_path):
    few = {"max_num_batched_tokens": 12, "max_num_seqs": 3}
    model = loaded(tmp_path, sizes={"head_dim": 32}, **few, **KERNELS)
    gc.collect()
    assert measure(model, CountsInputs()).table_bytes == 10**6


def test_the_buffers_of_a_steps_inputs_are_estimated(tmp_path):
    many = {"max_num_batched_tokens": 4096, "max_num_seqs": 64}
    model = loaded(tmp_path, sizes={"head_dim": 32}, **many, **KERNELS)
    memory = DeviceMemory(10**9, 10**9)
    estimated = estimate_profile(model.settings, model.composition, 10**6, model.specs, memory)
    tables = _slot_tables(model)
    inputs = _device_inputs(model, tables)
    target = [getattr(inputs._target, field.name) for field in fields(inputs._target)]
    columns = [each for each in tables.slot_fields.values() if each.dim() > 1]
    tensors = [*target, *columns, inputs._request_fields._device, tables.device_tables.cells]
    taken = sum(each.nbytes for each in tensors)
    assert estimated.table_bytes == pytest.approx(taken, rel=0.05)


def test_graphs_are_estimated_as_they_are_measured(tmp_path):
    model = loaded(tmp_path, sizes={"vocab_size": 4000}, kernels="torch")
    captured = with_graphs(model, 4)
    measured = measure(captured, AllocationMeter())
    estimated = estimate_profile(
        model.settings, captured.composition, 10**6, model.specs, DeviceMemory(10**9, 10**9)
    )
    beside = [each.graph_bytes - 6 * GRAPH_BYTES for each in (measured, estimated)]
    assert beside[1] == pytest.approx(beside[0], rel=0.25)


def test_a_cpu_without_memory_is_distinguished_from_a_part_that_fails():
    with (
        pytest.raises(CapacityError, match=r"a cache does not fit on cpu"),
        enough_memory("a cache", CPU, "do less"),
    ):
        torch.empty(2**60, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="shape"), enough_memory("a cache", CPU, "do less"):
        torch.empty(3).view(2)


def test_a_device_that_runs_out_of_memory_is_an_error_with_a_remedy():
    def run_out():
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with (
        pytest.raises(CapacityError, match=r"a step does not fit on cpu; do less, .*20 GiB"),
        enough_memory("a step", CPU, "do less"),
    ):
        run_out()


def test_every_filter_is_active_in_the_profiled_sampling(tmp_path, monkeypatch):
    model = loaded(tmp_path)
    columns = []
    sample = LargestStep._rows

    def noted(self, num_rows):
        rows = sample(self, num_rows)
        columns.append({name: float(rows.field(name)[0]) for name in ("top_k", "top_p", "min_p")})
        return rows

    monkeypatch.setattr(LargestStep, "_rows", noted)
    measure(model, AllocationMeter())
    assert columns == [pytest.approx({"top_k": 50, "top_p": 0.9, "min_p": 0.05})]


@pytest.mark.parametrize("options", [{}, KERNELS], ids=["", "kernels"])
def test_each_stage_is_measured_with_its_own_layers(tmp_path, options):
    """The last one alone has logits, and samples."""
    link, few = (
        ThreadedLink(),
        {"max_num_batched_tokens": 12, "max_num_seqs": 3, **STAGES, **options},
    )
    first, last = (
        loaded(tmp_path, sizes={"head_dim": 32}, stage=stage, max_model_len=64, **few)
        for stage in (
            Stage(index=0, count=2, layers=range(2), next=link),
            Stage(index=1, count=2, layers=range(2, 3), previous=link),
        )
    )
    names = [[spec.layer.name.split(".")[2] for spec in each.own_specs] for each in (first, last)]
    assert names == [["0", "1"], ["2"]]
    one, other = (measure(each, AllocationMeter()) for each in (first, last))
    assert min(one.forward_bytes, other.forward_bytes) > 12 * 64 * 4
    assert one.sampling_bytes == 0
    assert other.sampling_bytes > 2 * 3 * 320 * 4
    if options:  # three sizes of graphs
        assert 3 * GRAPH_BYTES <= one.graph_bytes < 3 * GRAPH_BYTES + 2**16
        assert 6 * GRAPH_BYTES + 3 * 320 * 4 <= other.graph_bytes < 6 * GRAPH_BYTES + 2**16
    else:
        assert one.graph_bytes == other.graph_bytes == 0
    assert link._sent.empty(), "what was sent was received"


def test_a_stage_needs_memory_for_the_cache_of_its_own_layers(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "quire.worker.memory.profiling.least_cache_bytes",
        lambda specs, settings: asked.append([spec.layer.name for spec in specs]) or 0,
    )
    stage = Stage(index=0, count=2, layers=range(1), next=ThreadedLink())
    gpu_cache_bytes(loaded(tmp_path, stage=stage, **STAGES), AllocationMeter())
    assert asked == [["model.layers.0.self_attn.attention"]]
