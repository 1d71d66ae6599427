"""A grid that cannot run a model is refused before anything is loaded, with sizes that would."""

from dataclasses import replace
from pathlib import Path

import pytest
from grid_parts import CONFIG, MACHINE, composed_grid, placing_any_grid, with_capabilities

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.grid_choice import (
    check_devices,
    check_shards,
    choose_executor,
    cores_warning,
    divided_sizes,
)
from quire.compose.compose import compose
from quire.compose.sizes.layer_specs import kv_layer_indexes
from quire.config import Settings
from quire.errors import CapacityError, RefusedError, SettingsError
from quire.interfaces.executor import ExecutorCapabilities, WorkerGrid
from quire.interfaces.kv_cache import KVLayer
from quire.launch.composing import log_composition
from quire.machine.machine import Machine
from quire.plugins.loading import Plugins

HEADS = {"num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 16}


def composed_by(registries, config=(), **options):
    settings = Settings.from_options(options)
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    return compose(settings, Plugins(registries), checkpoint, "", MACHINE)


def refusal(registries, *config, kind=SettingsError, **options):
    with pytest.raises(kind) as caught:
        composed_grid(registries, *config, **options)
    return str(caught.value)


def test_the_grid_is_what_the_options_say(quire_registries):
    options = {"tensor_parallel_size": 2, "pipeline_parallel_size": 3}
    grid = composed_grid(quire_registries, **options).grid
    assert (grid.tp_size, grid.pp_size, grid.size) == (2, 3, 6)
    assert [grid.place(rank) for rank in range(6)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3", "Gemma3"])
def test_every_architecture_is_sharded_and_divided(quire_registries, architecture):
    config = {"architectures": [f"{architecture}ForCausalLM"]}
    if architecture == "Gemma3":
        config |= {"head_dim": 16, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6,
                   "hidden_activation": None, "sliding_window": 32}  # fmt: skip
    options = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert composed_grid(quire_registries, config, **options).grid.size == 8


@pytest.mark.parametrize("size", [3, 5, 8, 100])
def test_heads_that_are_not_divided_name_all_sizes_that_work(quire_registries, size):
    message = refusal(quire_registries, tensor_parallel_size=size)
    assert message == (
        f"tensor_parallel_size {size} does not divide the model's 4 attention heads; sizes that "
        "work for this model: 1, 2, 4"
    )


@pytest.mark.parametrize("size", [1, 2, 4, 12])
def test_kv_heads_are_divided_or_repeated(quire_registries, size):
    composed_grid(quire_registries, HEADS, tensor_parallel_size=size)


@pytest.mark.parametrize("size", [3, 6])
def test_kv_heads_that_are_neither_divided_nor_repeated_are_refused(quire_registries, size):
    message = refusal(quire_registries, HEADS, tensor_parallel_size=size)
    assert (
        f"the 4 KV heads of model.layers.0.self_attn.attention cannot be sharded over {size}"
        in (message)
    )
    assert message.endswith("sizes that work for this model: 1, 2, 4, 12")


def test_an_mlp_that_is_not_divided_is_refused(quire_registries):
    config = HEADS | {"intermediate_size": 100}
    message = refusal(quire_registries, config, tensor_parallel_size=12)
    assert message == (
        "tensor_parallel_size 12 does not divide the model's intermediate_size of 100; sizes that "
        "work for this model: 1, 2, 4"
    )


def test_a_vocabulary_of_any_size_is_sharded(quire_registries):
    composed_grid(quire_registries, {"vocab_size": 323}, tensor_parallel_size=4)


STATE = KVLayer("s", "recurrent_state", 1, 1, (("state_shapes", ((6, 4),)),))


def test_a_state_that_is_not_divided_is_refused_by_its_spec(quire_registries):
    """By the description of a model with a recurrent layer, whose state has 6 rows."""
    composition = composed_grid(quire_registries, HEADS)
    spec = quire_registries.kv_cache_specs.load(
        quire_registries.kv_cache_specs.entry("recurrent_state")
    )

    def check_specs(size):
        spec(STATE, 16, "float32", size)

    described = replace(composition.description, sharded_sizes={})
    check_shards(described, 6, check_specs)
    with pytest.raises(SettingsError, match=r"\(6, 4\) of s .* this model: 1, 2, 3, 6$"):
        check_shards(described, 4, check_specs)


def divided(registries, expert_parallel, **sizes):
    description = replace(composed_grid(registries, HEADS).description, sharded_sizes={}, **sizes)
    return divided_sizes(description, expert_parallel)


def test_the_width_of_experts_is_divided_unless_the_experts_are(quire_registries):
    sizes = {"num_experts": 8, "expert_sizes": {"moe_intermediate_size": 9}}
    check_shards(divided(quire_registries, True, **sizes), 2, lambda _: None)
    check_shards(divided(quire_registries, False, **sizes), 3, lambda _: None)
    with pytest.raises(SettingsError, match=r"^tensor_parallel_size 3 does not .* 8 experts"):
        check_shards(divided(quire_registries, True, **sizes), 3, lambda _: None)
    with pytest.raises(SettingsError, match=r"moe_intermediate_size of 9"):
        check_shards(divided(quire_registries, False, **sizes), 2, lambda _: None)


def test_a_model_without_experts_has_none_to_divide(quire_registries):
    with pytest.raises(SettingsError, match=r"LlamaForCausalLM has no experts; leave it out"):
        divided(quire_registries, True)


def test_a_layer_that_no_size_suits_is_not_blamed_on_the_size(quire_registries):
    def check_specs(size):
        raise SettingsError("no such layer")

    with pytest.raises(SettingsError, match=r"^no such layer$"):
        check_shards(composed_grid(quire_registries).description, 2, check_specs)


def test_a_model_that_does_not_support_the_grid_is_refused(quire_registries):
    for side, option in (
        ("tensor", "tensor_parallel_size"),
        ("pipeline", "pipeline_parallel_size"),
    ):
        unable = with_capabilities(
            quire_registries, "models", **{f"supports_{side}_parallel": False}
        )
        composed_grid(unable)
        message = refusal(unable, kind=RefusedError, **{option: 2})
        assert f"does not support {side} parallelism; set {option} to 1" in message
        other = {"tensor_parallel_size", "pipeline_parallel_size"} - {option}
        composed_grid(unable, **dict.fromkeys(other, 2))


@pytest.mark.parametrize("option", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_an_executor_that_cannot_place_so_many_is_refused(quire_registries, option):
    few = placing_any_grid(quire_registries, **{f"max_{option}": 2})
    assert composed_by(few, **{option: 2}).grid.size == 2
    with pytest.raises(RefusedError, match=rf"supports a {option} of at most 2, and 4 is set; .*"):
        composed_by(few, **{option: 4})


GPUS = replace(MACHINE, has_cuda=True, num_gpus=2)
PLACES = ExecutorCapabilities(None, None)


def test_more_ranks_than_gpus_are_refused():
    check_devices(WorkerGrid(2, 1), GPUS, "cuda", PLACES)
    with pytest.raises(CapacityError) as caught:
        check_devices(WorkerGrid(2, 2), GPUS, "cuda", PLACES)
    assert (
        "needs 4 GPUs, 2 are visible on this machine; choose sizes with a product of at most 2"
        in (str(caught.value))
    )
    with pytest.raises(CapacityError, match="needs 2 GPUs, 1 is visible"):
        check_devices(WorkerGrid(1, 2), replace(GPUS, num_gpus=1), "cuda", PLACES)


@pytest.mark.parametrize(
    ("machine", "device", "executor"),
    [
        (GPUS, "cpu", PLACES),
        (replace(GPUS, num_gpus=None), "cuda", PLACES),
        (GPUS, "cuda", replace(PLACES, spans_machines=True)),
    ],
    ids=["on a CPU", "unknown", "on several machines"],
)
def test_the_gpus_of_this_machine_do_not_limit_others(machine, device, executor):
    check_devices(WorkerGrid(4, 4), machine, device, executor)


def test_too_few_gpus_are_said_when_the_engine_is_composed(quire_registries):
    options = {"tensor_parallel_size": 4, "device": "cuda"}
    machine = Machine(frozenset(), has_cuda=True, num_gpus=3)
    with pytest.raises(CapacityError, match="needs 4 GPUs, 3 are visible"):
        composed_grid(quire_registries, machine=machine, **options)
    enough = replace(machine, num_gpus=4)
    assert composed_grid(quire_registries, machine=enough, **options).device == "cuda"


def on_cores(registries, cores, machine=MACHINE, **options):
    return composed_grid(registries, machine=replace(machine, num_cores=cores), **options)


def test_more_ranks_than_cores_are_allowed_with_a_warning(quire_registries, caplog):
    four = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert cores_warning(on_cores(quire_registries, 4, **four)) is None
    composition = on_cores(quire_registries, 3, **four)
    assert cores_warning(composition).startswith("4 ranks share 3 CPU cores of this machine, so")
    assert cores_warning(composition, 2).startswith("8 ranks share 3 CPU cores")
    assert cores_warning(on_cores(quire_registries, 4, tensor_parallel_size=2), 2) is None
    assert cores_warning(on_cores(quire_registries, 4, tensor_parallel_size=2), 3) is not None
    log_composition(composition)
    (warning,) = [record for record in caplog.records if "ranks share" in record.getMessage()]
    assert warning.levelname == "WARNING"


def test_one_rank_on_any_cores_and_ranks_elsewhere_are_no_warning(quire_registries):
    two = {"tensor_parallel_size": 2}
    assert cores_warning(on_cores(quire_registries, 0)) is None
    assert cores_warning(on_cores(quire_registries, None, **two)) is None
    assert cores_warning(on_cores(quire_registries, 1, **two)) is not None
    on_gpus = on_cores(quire_registries, 1, GPUS, device="cuda", **two)
    assert cores_warning(on_gpus) is None
    wide = with_capabilities(quire_registries, "executors", spans_machines=True)
    assert cores_warning(on_cores(wide, 1, **two)) is None


def test_replicas_are_not_started_over_several_machines(quire_registries):
    with pytest.raises(RefusedError, match="set data_parallel_size to 1, and start an engine"):
        choose_executor(quire_registries, "joined", WorkerGrid(2), 2)
    assert choose_executor(quire_registries, "joined", WorkerGrid(2), 1).name == "joined"
    assert choose_executor(quire_registries, "processes", WorkerGrid(2), 2).name == "processes"


def test_the_log_has_the_workers_and_their_layers(quire_registries, caplog):
    caplog.set_level("INFO")
    log_composition(composed_grid(quire_registries, pipeline_parallel_size=2))
    workers = "workers: 2 (tensor_parallel_size 1, pipeline_parallel_size 2: layers 0-1, 2-3)"
    assert workers in caplog.messages


def test_steps_of_stages_and_shards_have_cpu_graphs(quire_registries):
    machine = replace(MACHINE, native_unavailable_reason=None)
    for tp_size, pp_size in ((1, 1), (2, 1), (1, 2), (2, 2)):
        graphs = composed_grid(
            quire_registries,
            machine=machine,
            tensor_parallel_size=tp_size,
            pipeline_parallel_size=pp_size,
        ).cpu_graphs
        assert graphs.value is True


def described(registries, *layers):
    return replace(composed_grid(registries).description, kv_layers=layers)


def test_kv_layers_are_of_the_decoder_layers_that_they_name(quire_registries):
    layer = KVLayer("a", "full_attention", 2, 16)
    every = [replace(layer, name=str(index)) for index in range(4)]
    assert kv_layer_indexes(described(quire_registries, *every)) == [0, 1, 2, 3]
    some = [replace(layer, name=str(index), layer_index=index) for index in (1, 3, 3)]
    assert kv_layer_indexes(described(quire_registries, *some)) == [1, 3, 3]


@pytest.mark.parametrize("index", [None, -1, 4])
def test_kv_layers_of_no_decoder_layer_are_refused(quire_registries, index):
    known = KVLayer("a", "full_attention", 2, 16, layer_index=0)
    unknown = replace(known, name="b", layer_index=index)
    with pytest.raises(RefusedError, match="gives b no `layer_index` from 0 to 3"):
        kv_layer_indexes(described(quire_registries, known, unknown))


@pytest.mark.parametrize("option", ["worker_address", "worker_key_file"])
@pytest.mark.parametrize(("size", "executor"), [(1, "in_process"), (2, "processes")])
def test_options_for_other_machines_are_refused_where_all_workers_are_here(
    quire_registries, option, size, executor
):
    given = {"tensor_parallel_size": size, option: "given"}
    with pytest.raises(SettingsError) as caught:
        composed_by(quire_registries, **given)
    assert str(caught.value) == (
        f"{option} 'given' is for workers on other machines, and executor {executor!r} places all "
        f"workers on this one; add --executor joined, or leave {option} out"
    )
    assert composed_by(quire_registries, executor="joined", **given).executor.name == "joined"
