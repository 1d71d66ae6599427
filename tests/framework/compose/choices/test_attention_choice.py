"""Selection of attention backends, and models that mix several."""

from dataclasses import replace
from pathlib import Path

import pytest
from installed import sites

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.attention_choice import attention_queries
from quire.compose.compose import compose
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.attention import AttentionQuery
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.machine.machine import Machine
from quire.plugins.loading import load_plugins

site = pytest.fixture(sites)

HOPPER = Machine(frozenset(), has_cuda=True, has_triton=True, compute_capability=90)
LATENT = 'KVLayer("latent.{}", "mla_attention", 1, 64, (("latent_dim", 48),))'
STATES = "layouts=frozenset({'state'})"
CONFIG = {
    "architectures": ["AcmeForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "torch_dtype": "float16",
}
MODEL = """
    from dataclasses import replace
    from quire import hookimpl
    from quire.interfaces.kv_cache import KVLayer
    from quire.interfaces.model import ModelCapabilities
    from quire_models.family_table import describe as describe_family

    @hookimpl
    def register_models(registry):
        there = ModelCapabilities(describe="acme:describe")
        registry.add("AcmeForCausalLM", "quire.errors:QuireError", capabilities=there)

    def describe(config):
        known = describe_family(config | {"architectures": ["LlamaForCausalLM"]})
        return replace(known, kv_layers=(LAYERS,))
"""
BACKENDS = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    some = dict(
        devices=frozenset({"tpu"}), dtypes=frozenset({"float16"}),
        kv_dtypes=frozenset({"float16"}),
    )

    @hookimpl
    def register_attention_backends(registry):
        for name, more in (BACKENDS).items():
            there = AttentionCapabilities(**some | more)
            registry.add(name, "quire.errors:QuireError", capabilities=there)
"""
FULL = 'KVLayer("full.{}", "full_attention", 2, 16)'
LARGE = 'KVLayer("large.{}", "full_attention", 2, 512)'
WINDOW = 'KVLayer("window.{}", "sliding_window", 2, 16, (("window", 8),))'
STATE = 'KVLayer("state.{}", "recurrent_state", 1, 1, (("state_shapes", ((8, 4),)),))'


def composed(site, layers, backends, machine=HOPPER, device="tpu", **options):
    """Compose a model of these layers on a device that only these backends support."""
    named = ", ".join(layer.format(index) for index, layer in enumerate(layers))
    site.install("acme", MODEL.replace("LAYERS", named))
    site.install("acme_backends", BACKENDS.replace("BACKENDS", backends))
    return composed_again(machine, device, **options)


def composed_again(machine=HOPPER, device="tpu", **options):
    """Compose with the plugins that are installed already."""
    settings = Settings.from_options({"device": device} | options)
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG)
    return compose(settings, load_plugins(settings.plugins), checkpoint, "", machine)


def offers(**backends):
    """Return the source of a dict of backends, each with its additional capabilities."""
    every = (f"{name!r}: dict({declared})" for name, declared in backends.items())
    return "{" + ", ".join(every) + "}"


def served(composition):
    """Return the name of each layer's backend."""
    layers = composition.description.kv_layers
    return {layer.name: composition.attention_backend_of(layer).name for layer in layers}


def reasons(choice):
    return {rejection.name: rejection.reason for rejection in choice.rejected}


def test_one_backend_that_serves_all_goes_before_a_better_one_that_does_not(site):
    windowed = "sliding_window=True"
    backends = offers(quick="priority=9", able=f"{windowed}, priority=1", slow=windowed)
    composition = composed(site, [FULL, WINDOW, FULL], backends)
    (choice,) = composition.attention_backends
    assert (choice.name, choice.reason) == ("able", "auto: the highest priority of those that can")
    rejected = reasons(choice)
    assert rejected["quick"] == "it does not support sliding windows"
    assert rejected["slow"] == "supported, but able has priority"
    assert rejected["torch_sdpa"] == "device tpu is not among cpu, cuda"


def test_where_none_serves_all_each_kind_of_layer_has_the_best_that_can(site):
    backends = offers(
        small="priority=9, head_dims=frozenset({16})",
        large="priority=5, head_dims=frozenset({512})",
        windowed="priority=1, sliding_window=True, head_dims=frozenset({16})",
    )
    composition = composed(site, [FULL, WINDOW, LARGE, FULL, FULL], backends)
    assert served(composition) == {
        "full.0": "small", "window.1": "windowed", "large.2": "large", "full.3": "small",
        "full.4": "small",
    }  # fmt: skip
    assert composition.attention_backends[0].name == "small", "which serves most"
    by_name = {choice.name: choice for choice in composition.attention_backends}
    most, window = "for 3 of 5 layers (full_attention)", "for 1 of 5 layers (sliding_window)"
    assert by_name["small"].reason == f"auto: the highest priority of those that can, {most}"
    assert by_name["windowed"].reason == f"auto: the only one that can, {window}"
    assert reasons(by_name["large"])["small"] == "head size 512 is not among 16"


def test_each_layout_has_a_backend_that_speaks_it(site):
    backends = offers(kv="", state=STATES)
    composition = composed(site, [FULL, STATE, FULL], backends)
    assert served(composition) == {"full.0": "kv", "state.1": "state", "full.2": "kv"}


def test_a_latent_of_another_size_is_refused_though_its_row_adds_up(site):
    latent = "layouts=frozenset({'mla'}), block_sizes=frozenset({16})"
    served_rows = "latent_dims=frozenset({32}), rope_dims=frozenset({32})"
    backends = offers(quick=f"{latent}, {served_rows}, priority=9", able=latent)
    (choice,) = composed(site, [LATENT], backends).attention_backends
    assert choice.name == "able"
    assert reasons(choice)["quick"] == "latent size 48 is not among 32"


def test_a_named_backend_leaves_other_layouts_to_the_best_that_can(site):
    backends = offers(mine="priority=-1", kv="priority=5", state=STATES)
    composition = composed(site, [FULL, STATE], backends, attention_backend="mine")
    assert served(composition) == {"full.0": "mine", "state.1": "state"}
    assert [choice.reason for choice in composition.attention_backends] == [
        "asked for, for 1 of 2 layers (full_attention)",
        "auto: the only one that can, for 1 of 2 layers (recurrent_state)",
    ]


def test_a_named_backend_that_speaks_no_layout_of_the_model_is_refused(site):
    backends = offers(kv="", state=STATES)
    with pytest.raises(RefusedError, match=r"'state' .* layout kv is not among state; .* can: kv"):
        composed(site, [FULL], backends, attention_backend="state")


def test_layers_without_a_backend_are_named_with_every_reason(site):
    with pytest.raises(RefusedError) as caught:
        composed(site, [FULL, STATE, STATE], offers(kv=""))
    message = str(caught.value)
    assert "the 2 layer(s) of this model with KV-cache spec recurrent_state" in message
    assert "kv: layout state is not among kv" in message


ABLE = "devices=frozenset({'cuda'}), sliding_window=True"
REFUSALS = {
    "head size 16 is not among 64, 128": "head_dims=frozenset({64, 128})",
    "dtype float16 is not among float32": "dtypes=frozenset({'float32'})",
    "it does not support sliding windows": "sliding_window=False",
    "device cuda is not among cpu": "devices=frozenset({'cpu'})",
    "compute capability 10.0, and this one has 9.0": "min_compute_capability=100",
    "KV dtype float16 is not among int8": "kv_dtypes=frozenset({'int8'})",
    "layout kv is not among mla": "layouts=frozenset({'mla'})",
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_backend_that_cannot_is_never_chosen_and_refused_by_name(site, reason):
    unable = f"**(dict({ABLE}, priority=99) | dict({REFUSALS[reason]}))"
    backends = offers(able=f"{ABLE}, priority=50", unable=unable)
    composition = composed(site, [FULL, WINDOW], backends, device="cuda")
    (choice,) = composition.attention_backends
    assert choice.name == "able"
    assert reason in reasons(choice)["unable"]
    with pytest.raises(RefusedError) as caught:
        composed_again(device="cuda", attention_backend="unable")
    assert "attention backend 'unable' cannot serve this model" in str(caught.value)
    assert reason in str(caught.value)
    assert "able" in str(caught.value).partition("; backends that can: ")[2].split(", ")


def test_a_gpu_that_says_nothing_of_its_kind_is_given_the_benefit_of_the_doubt(site):
    silent = Machine(frozenset(), has_cuda=True, has_triton=True)
    backends = offers(new=f"{ABLE}, priority=99, min_compute_capability=100")
    (choice,) = composed(site, [FULL], backends, silent, "cuda").attention_backends
    assert choice.name == "new"


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [
        ("default_block_size=64", "", 64),
        ("default_block_size=64", "block_sizes=frozenset({16, 32})", 16),
        ("block_sizes=frozenset({32, 128})", "block_sizes=frozenset({32, 64})", 32),
        ("block_sizes=frozenset({48})", "default_block_size=128", 48),
    ],
)
def test_the_block_size_is_one_that_every_backend_serves(site, first, second, size):
    backends = offers(a=first, b=f"{STATES}, {second}")
    composition = composed(site, [FULL, FULL, STATE], backends)
    assert composition.block_size == size


def test_backends_that_share_no_block_size_are_refused(site):
    first, second = "block_sizes=frozenset({32})", "block_sizes=frozenset({64})"
    backends = offers(a=first, b=f"{STATES}, {second}")
    with pytest.raises(RefusedError, match=r"no block size .* \(a: 32; b: 64\)"):
        composed(site, [FULL, STATE], backends)


GRAPHS = offers(able=f"{ABLE}, priority=99, graphs='decode'")


@pytest.mark.parametrize(
    ("options", "size", "why"),
    [
        ({}, 256, "decode steps of up to 256 of 256 requests"),
        ({"max_num_seqs": 4}, 4, "decode steps of up to 4 of 4 requests"),
        ({"max_num_seqs": 2000, "max_num_batched_tokens": 4000}, 512, "up to 512 of 2000"),
        ({"max_cuda_graph_size": 8}, 8, "decode steps of up to 8 of 256 requests"),
        ({"enforce_eager": True}, 0, "none: --enforce-eager"),
        ({"kernels": "torch"}, 0, "none: --kernels torch"),
    ],
    ids=str,
)
def test_cuda_graphs_are_captured_up_to_a_size_or_not_for_a_reason(site, options, size, why):
    composition = composed(site, [FULL], GRAPHS, device="cuda", **options)
    assert composition.cuda_graphs.value == size
    assert why in composition.cuda_graphs.reason


@pytest.mark.parametrize(
    ("backend", "options", "reason"),
    [
        ("graphs='decode'", {}, None),
        ("graphs='full'", {}, None),
        ("graphs='decode'", {"enforce_eager": True}, "--enforce-eager"),
        ("graphs='decode'", {"kernels": "torch"}, "--kernels torch"),
        ("graphs='decode'", {"quantization": "none"}, "torch computes linear layers"),
        ("graphs='none'", {}, "attention backend 'able' does not support them"),
    ],
    ids=str,
)
def test_decode_steps_on_a_cpu_have_cpu_graphs_or_a_reason_why_not(site, backend, options, reason):
    types = "dtypes=frozenset({'float32'}), kv_dtypes=frozenset({'float32'})"
    backends = offers(able=f"devices=frozenset({{'cpu'}}), {types}, priority=99, {backend}")
    machine = replace(HOPPER, native_unavailable_reason=None)
    composition = composed(
        site, [FULL], backends, machine, device="cpu", dtype="float32", **options
    )
    assert composition.cpu_graphs.value == (reason is None)
    assert composition.cpu_graphs.reason == (reason or "every part of a step supports them")
    steps = "replayed from CPU graphs" if reason is None else f"without CPU graphs ({reason})"
    assert composition.decode_steps == steps


def test_only_a_cpu_has_cpu_graphs(site):
    composition = composed(site, [FULL], GRAPHS, device="cuda")
    assert composition.cpu_graphs.reason == "the device is cuda"


def test_a_backend_that_cannot_run_in_a_graph_keeps_every_step_out_of_one(site):
    backends = offers(able=f"{ABLE}, priority=99")
    composition = composed(site, [FULL], backends, device="cuda")
    assert composition.cuda_graphs.value == 0
    assert composition.cuda_graphs.reason == "none: attention backend 'able' does not support them"


LAYER = KVLayer("layer", "full_attention", 8, 64)
DESCRIPTION = ModelDescription(
    architecture="Acme", config={}, vocab_size=10, hidden_size=8, num_layers=1, num_heads=16,
    max_model_len=64, num_params=1, checkpoint_dtype="float32", kv_layers=(LAYER,),
)  # fmt: skip


NO_COMPILER = replace(HOPPER, native_unavailable_reason="there is no g++")


def asked(registries, layer=LAYER, options=(), dtype="float16", kernels="triton", **description):
    settings = Settings.from_options(dict(options))
    described = replace(DESCRIPTION, kv_layers=(layer,), **description)
    queries = attention_queries(
        settings, registries, described, "cuda", dtype, kernels, NO_COMPILER
    )
    return queries[layer]


def test_a_layer_that_is_not_special_asks_for_nothing_special(quire_registries):
    assert asked(quire_registries) == AttentionQuery(
        device="cuda", dtype="float16", kv_dtype="float16", num_heads=16, num_kv_heads=8,
        head_dim=64, compute_capability=90, native_unavailable_reason="there is no g++",
    )  # fmt: skip


def test_native_kernels_attend_in_float32_over_a_cache_in_the_compute_dtype(quire_registries):
    query = asked(quire_registries, dtype="bfloat16", kernels="native")
    assert (query.dtype, query.kv_dtype) == ("float32", "bfloat16")
    options = {"kv_cache_dtype": "float32"}
    query = asked(quire_registries, options=options, dtype="bfloat16", kernels="native")
    assert (query.dtype, query.kv_dtype) == ("float32", "float32")
    query = asked(quire_registries, dtype="bfloat16", kernels="torch")
    assert (query.dtype, query.kv_dtype) == ("bfloat16", "bfloat16")


def test_devices_that_share_a_layer_have_a_part_of_its_heads_each(quire_registries):
    query = asked(quire_registries, options={"tensor_parallel_size": 4})
    assert (query.num_heads, query.num_kv_heads) == (4, 2)
    query = asked(quire_registries, options={"tensor_parallel_size": 16})
    assert (query.num_heads, query.num_kv_heads) == (1, 1), "key/value heads are repeated"


def test_what_the_model_and_its_layers_need_is_asked_for(quire_registries):
    assert asked(quire_registries, sliding_window=9).sliding_window == 9
    assert asked(quire_registries, logit_soft_cap=30.0).logit_soft_cap == 30.0
    assert asked(quire_registries, replace(LAYER, has_sinks=True)).has_sinks is True
    assert asked(quire_registries, replace(LAYER, has_alibi=True)).has_alibi is True
    window = replace(LAYER, spec="sliding_window", params=(("window", 8),))
    assert asked(quire_registries, window, sliding_window=9).sliding_window == 8
    chunk = replace(LAYER, spec="chunked_local_attention", params=(("chunk", 7),))
    assert asked(quire_registries, chunk).attention_chunk == 7
    latent = replace(LAYER, spec="mla_attention", params=(("latent_dim", 48),))
    query = asked(quire_registries, latent)
    assert (query.layout, query.latent_dim) == ("mla", 48)


def test_what_the_user_and_the_machine_ask_for_reaches_the_backends(quire_registries):
    options = {"kv_cache_dtype": "int8", "block_size": 32, "batch_invariant": True}
    query = asked(quire_registries, options=options)
    assert (query.kv_dtype, query.block_size, query.batch_invariant) == ("int8", 32, True)
    assert (query.compute_capability, query.native_unavailable_reason) == (90, "there is no g++")
