from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from installed import sites

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.kernel_choice import num_captures
from quire.compose.compose import compose
from quire.compose.composition import Decision
from quire.compose.sizes.layer_specs import build_spec, layer_specs
from quire.config import DEFAULT_LOGITS_PROCESSORS, Settings
from quire.errors import (
    ApiVersionError,
    ContestedNameError,
    PluginLoadError,
    RefusedError,
    SettingsError,
    UnknownNameError,
    UnsupportedModelError,
)
from quire.interfaces.executor import ExecutorCapabilities
from quire.interfaces.model import ModelCapabilities
from quire.launch.composing import log_composition
from quire.machine.machine import Machine
from quire.plugins.loading import Plugins, Registries, load_plugins
from quire.plugins.registry import Source

site = pytest.fixture(sites)

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
}
MACHINE = Machine(frozenset({"avx2"}), has_cuda=False)
COMPILES = Machine(frozenset({"avx2"}), has_cuda=False, native_unavailable_reason=None)
HERMES_TEMPLATE = "{% for m in messages %}<tool_call>{{ m }}</tool_call>{% endfor %}"

BACKEND = """
    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities

    @hookimpl
    def register_attention_backends(registry):
        there = AttentionCapabilities(
            devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}),
            kv_dtypes=frozenset({"float32"}), default_block_size=32, OPTIONS
        )
        registry.add("acme", "quire.errors:QuireError", capabilities=there, api=1)
"""
SAMPLER = """
    from quire import hookimpl
    from quire.interfaces.sampling import RequestField, SamplerCapabilities

    @hookimpl
    def register_samplers(registry):
        field = RequestField("FIELD", float, DEFAULT)
        there = SamplerCapabilities(stage="STAGE", states=(STATES), fields=(field,))
        registry.add("acme", "quire.errors:QuireError", capabilities=there)
"""
PARSER = """
    from quire import hookimpl
    from quire.interfaces.tool_parsing import ToolParserCapabilities

    @hookimpl
    def register_tool_parsers(registry):
        there = ToolParserCapabilities(template_markers=(MARKERS), priority=PRIORITY)
        registry.add("acme", "quire.errors:QuireError", capabilities=there, api=1)
"""
MODEL = """
    from quire import hookimpl
    from quire.interfaces.model import ModelCapabilities

    @hookimpl
    def register_models(registry):
        there = ModelCapabilities(describe="acme:describe", OPTIONS)
        registry.add("AcmeForCausalLM", "quire.errors:QuireError", capabilities=there)

    def describe(config):
        from quire_models.family_table import describe as describe_family
        return describe_family(config | {"architectures": ["LlamaForCausalLM"]})
"""


def sampler(field="acme_field", default="1.0", stage="filter", states=""):
    source = SAMPLER.replace("FIELD", field).replace("DEFAULT", default)
    return source.replace("STATES", states).replace("STAGE", stage)


def parser(markers="'<acme>',", priority="0", architectures="()"):
    priority = f"{priority}, architectures={architectures}"
    return PARSER.replace("MARKERS", markers).replace("PRIORITY", priority)


def backend_of(composition):
    """Return the one backend that serves every layer."""
    (choice,) = composition.attention_backends
    assert all(
        composition.attention_backend_of(layer) is choice
        for layer in composition.description.kv_layers
    )
    return choice


def composed(template="", config=(), machine=MACHINE, **options):
    settings = Settings.from_options(options)
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    return compose(settings, load_plugins(settings.plugins), checkpoint, template, machine)


def reasons(choice):
    return {rejection.name: rejection.reason for rejection in choice.rejected}


def test_every_part_is_chosen_with_its_source_and_a_reason():
    composition = composed(HERMES_TEMPLATE, enable_lora=True)
    kinds = {choice.entry.kind.name for choice in composition.choices}
    assert kinds == {
        "models", "attention_backends", "kv_cache_specs", "samplers", "structured_output",
        "tool_parsers", "lora_sources", "scheduling_policies", "executors",
    }  # fmt: skip
    for choice in composition.choices:
        assert choice.reason
        assert choice.entry.source.distribution == "quire"


def test_a_composition_as_data_has_plugins_and_reasons():
    data = backend_of(composed()).as_dict()
    assert data["kind"] == "attention_backends"
    assert data["name"] == "torch_sdpa"
    assert data["plugin"] == "quire_attention_backends"
    assert data["why"] == "auto: the only one that can"


def test_a_composition_cannot_be_changed():
    composition = composed()
    with pytest.raises(FrozenInstanceError):
        composition.device = "cuda"
    with pytest.raises(FrozenInstanceError):
        composition.model.reason = "because"


def test_workers_can_compare_what_they_compose(site):
    fingerprint = composed().fingerprint()
    assert ("models", "LlamaForCausalLM", "quire", composed().quire_version) in fingerprint
    assert fingerprint == composed().fingerprint()
    site.install("acme", sampler())
    assert fingerprint != composed(samplers=["default", "acme"]).fingerprint()


def test_the_dtype_is_what_the_machine_is_good_at_and_says_why():
    composition = composed()
    assert composition.dtype.value == composition.kv_dtype == "float32"
    assert "slower on this CPU" in composition.dtype.reason


def test_the_models_length_is_taken_or_a_shorter_one():
    assert composed().max_model_len == 128
    assert composed(max_model_len=64).max_model_len == 64
    with pytest.raises(SettingsError, match=r"max_model_len is 129, .* maximum length is 128"):
        composed(max_model_len=129)


def test_the_spec_of_a_layer_is_built_from_what_was_chosen():
    plugins = load_plugins()
    composition = composed(block_size=32)
    layer = composition.description.kv_layers[0]
    spec = build_spec(plugins.registries, composition, layer, 1)
    assert (spec.block_size, spec.page_bytes) == (32, 2 * 32 * 2 * 16 * 4)


LAYERED = """
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
WINDOW = 'KVLayer("w", "sliding_window", 2, 16, (("window", 8),))'
CHUNK = 'KVLayer("c", "chunked_local_attention", 2, 16, (("chunk", 8),))'
STATE = 'KVLayer("s", "recurrent_state", 1, 1, (("state_shapes", ((8, 4),)),))'
CROSS = 'KVLayer("x", "cross_attention", 2, 16, (("encoder_len", 50),))'
FULL = 'KVLayer("f", "full_attention", 2, 16)'


def layered(site, *layers, backend="", **options):
    site.install("acme", LAYERED.replace("LAYERS", ", ".join(layers)))
    if backend:
        site.install("acme_backend", BACKEND.replace("OPTIONS", backend))
    return composed(config={"architectures": ["AcmeForCausalLM"]}, **options)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (WINDOW, "it does not support sliding windows"),
        (CHUNK, "it does not support chunked local attention"),
    ],
)
def test_a_named_backend_must_serve_every_layer_of_its_layouts(site, layer, reason):
    with pytest.raises(RefusedError, match=f"cannot serve this model: {reason}"):
        layered(site, FULL, layer, backend="priority=9", attention_backend="acme")


def test_a_backend_that_declares_what_the_layers_need_serves_them(site):
    able = (
        "priority=9, sliding_window=True, attention_chunk=True, "
        "layouts=frozenset({'kv', 'state', 'cross'})"
    )
    composition = layered(site, FULL, WINDOW, CHUNK, STATE, CROSS, backend=able)
    assert backend_of(composition).name == "acme"
    assert [choice.name for choice in composition.kv_cache_specs] == [
        "full_attention", "sliding_window", "chunked_local_attention", "recurrent_state",
        "cross_attention",
    ]  # fmt: skip


def test_layers_that_no_backend_serves_are_refused_with_each_reason(site):
    with pytest.raises(RefusedError, match=r"torch_sdpa: layout state is not among kv"):
        layered(site, FULL, STATE)


def test_a_model_that_keeps_nothing_is_composed(site):
    site.install("acme", LAYERED.replace("(LAYERS,)", "()"))
    composition = composed(config={"architectures": ["AcmeForCausalLM"]})
    assert composition.kv_cache_specs == ()
    assert composition.attention_backends == ()
    assert composition.block_size == 16


def test_a_spec_that_no_plugin_offers_is_named(site):
    with pytest.raises(UnknownNameError, match="unknown KV-cache spec 'ful_attention'"):
        layered(site, 'KVLayer("f", "ful_attention", 2, 16)')


def test_an_unknown_architecture_names_the_nearest_and_how_to_add_it():
    with pytest.raises(UnsupportedModelError) as caught:
        composed(config={"architectures": ["LlamaForCausalML"]})
    message = str(caught.value)
    assert "unknown model 'LlamaForCausalML'; did you mean 'LlamaForCausalLM'?" in message
    assert "register_models" in message


def test_a_quantization_that_no_plugin_offers_is_refused():
    config = {"quantization_config": {"quant_method": "acme4"}}
    with pytest.raises(
        UnknownNameError, match="are quantized by 'acme4', and no installed plugin offers"
    ):
        composed(config=config)


def test_a_description_that_fails_names_its_plugin(site):
    site.install(
        "acme", MODEL.replace("OPTIONS", "").replace("describe_family(config", "(config[1]")
    )
    with pytest.raises(PluginLoadError, match=r"'AcmeForCausalLM' of acme \(acme 1.0\).*KeyError"):
        composed(config={"architectures": ["AcmeForCausalLM"]})


def test_a_description_of_the_wrong_type_is_refused(site):
    site.install("acme", MODEL.replace("OPTIONS", "").replace("describe_family(config", "(config"))
    with pytest.raises(PluginLoadError, match="returned a dict, not a ModelDescription"):
        composed(config={"architectures": ["AcmeForCausalLM"]})


def test_a_models_own_refusal_is_passed_on():
    with pytest.raises(UnsupportedModelError, match="hidden_act 'gelu9'"):
        composed(config={"hidden_act": "gelu9"})


def test_auto_takes_the_attention_backend_of_the_highest_priority(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=5"))
    composition = composed()
    assert backend_of(composition).name == "acme"
    assert backend_of(composition).reason == "auto: the highest priority of those that can"
    assert reasons(backend_of(composition))["torch_sdpa"] == "supported, but acme has priority"
    assert composition.block_size == 32


def test_where_kernels_can_be_compiled_attention_and_sampling_run_them():
    composition = composed(machine=COMPILES)
    assert backend_of(composition).name == "cpu"
    assert composition.samplers[-1].name == "cpu_gumbel"
    assert reasons(backend_of(composed()))["cpu"] == (
        "it runs compiled kernels: the compiler was not looked for"
    )


def test_with_kernels_off_the_compiled_backend_is_only_chosen_by_its_name():
    composition = composed(machine=COMPILES, kernels="torch")
    assert backend_of(composition).name == "torch_sdpa"
    assert reasons(backend_of(composition))["cpu"] == "it runs compiled kernels: --kernels torch"
    named = composed(machine=COMPILES, kernels="torch", attention_backend="torch_sdpa")
    assert reasons(backend_of(named))["cpu"] == "it runs compiled kernels: --kernels torch"
    asked = composed(machine=COMPILES, kernels="torch", attention_backend="cpu")
    assert backend_of(asked).name == "cpu"


def test_auto_passes_over_a_backend_that_cannot_and_says_why(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=5, head_dims=frozenset({64, 128})"))
    choice = backend_of(composed())
    assert choice.name == "torch_sdpa"
    assert reasons(choice)["acme"] == "head size 16 is not among 64, 128"


def test_auto_passes_over_another_version_of_the_interface(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=5").replace("api=1", "api=7"))
    choice = backend_of(composed())
    assert reasons(choice)["acme"] == "interface version 7 is not supported"


def test_auto_passes_over_a_contested_backend(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=5"))
    site.install("other", BACKEND.replace("OPTIONS", "priority=5"))
    assert reasons(backend_of(composed()))["acme"] == "several plugins offer it"


def test_auto_with_no_backend_that_can_gives_every_reason(site):
    site.install("acme", BACKEND.replace("OPTIONS", ""))
    with pytest.raises(RefusedError) as caught:
        composed(device="tpu")
    assert "acme: device tpu is not among cpu" in str(caught.value)
    assert "torch_sdpa: device tpu is not among cpu, cuda" in str(caught.value)


def test_a_backend_is_taken_by_name_though_another_has_a_higher_priority(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=-1"))
    choice = backend_of(composed(attention_backend="acme"))
    assert (choice.name, choice.reason) == ("acme", "asked for")


def test_a_named_backend_that_cannot_stops_with_the_reason_and_those_that_can(site):
    site.install("acme", BACKEND.replace("OPTIONS", "block_sizes=frozenset({64})"))
    with pytest.raises(RefusedError) as caught:
        composed(attention_backend="acme", block_size=16)
    message = str(caught.value)
    assert (
        "'acme' cannot serve this model: block size 16 is not among 64; backends that can: "
        "torch_sdpa" in message
    )


def test_a_named_part_of_another_interface_version_stops(site):
    site.install("acme", BACKEND.replace("OPTIONS", "").replace("api=1", "api=7"))
    with pytest.raises(ApiVersionError, match="has interface version 7"):
        composed(attention_backend="acme")


def test_a_named_part_that_is_contested_stops_until_the_user_decides(site):
    site.install("acme", BACKEND.replace("OPTIONS", ""))
    site.install("other", BACKEND.replace("OPTIONS", ""))
    with pytest.raises(ContestedNameError, match=r"acme \(acme 1.0\) and other \(other 1.0\)"):
        composed(attention_backend="acme")
    prefer = ["attention_backends:acme=other"]
    choice = backend_of(composed(attention_backend="acme", prefer=prefer))
    assert choice.entry.source.plugin == "other"


@pytest.mark.parametrize(
    ("option", "title", "near"),
    [
        ("attention_backend", "attention backend", "torch_sdpa"),
        ("structured_output", "structured-output backend", "outlines"),
        ("tool_call_parser", "tool-call parser", "hermes"),
        ("reasoning_parser", "reasoning parser", "think_tags"),
        ("lora_source", "LoRA source", "peft"),
        ("executor", "executor", "in_process"),
    ],
)
def test_an_unknown_name_of_each_kind_is_refused_with_the_nearest(option, title, near):
    wrong = near[:-1] + "x"
    with pytest.raises(UnknownNameError) as caught:
        composed(**{option: wrong}, enable_lora=True)
    assert f"unknown {title} {wrong!r}; did you mean {near!r}?" in str(caught.value)


def test_an_unknown_sampler_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown sampler 'temperatur'; did you mean 'temp"):
        composed(samplers=["default", "temperatur"])


def test_samplers_run_by_stage_and_then_by_name_however_they_are_written(site):
    site.install("acme", sampler(stage="penalty"))
    names = ["torch_gumbel", "acme", "top_k_top_p", "min_p", "temperature"]
    composition = composed(samplers=names)
    order = [choice.name for choice in composition.samplers]
    assert order == ["acme", "temperature", "min_p", "top_k_top_p", "torch_gumbel"]


def test_default_stands_for_the_built_in_samplers(site):
    site.install("acme", sampler())
    composition = composed(samplers=["default", "acme"])
    whys = {choice.name: choice.reason for choice in composition.samplers}
    assert whys["acme"] == "asked for"
    assert whys["min_p"] == "built in"
    assert set(whys) == {*DEFAULT_LOGITS_PROCESSORS, "torch_gumbel", "acme"}


def test_samplers_bring_their_request_fields_each_once(site):
    site.install("acme", sampler())
    fields = [f.name for f in composed(samplers=["default", "acme"]).sampler_fields]
    assert len(set(fields)) == len(fields)
    assert {"acme_field", "bad_words", "dry_base", "min_p", "temperature", "top_k"} <= set(fields)


def test_two_samplers_must_mean_the_same_by_a_request_field(site):
    site.install("acme", sampler(field="min_p", default="0.5"))
    with pytest.raises(SettingsError, match="both read the request field 'min_p'"):
        composed(samplers=["default", "acme"])


def test_the_states_of_samplers_are_in_the_order_of_the_steps(site):
    site.install("acme", sampler(states="'acme_state',"))
    states = composed(samplers=["default", "acme"]).sampler_states
    assert states == ["acme_state", "mirostat_mu"]


@pytest.mark.parametrize("name", ["mirostat_mu", "mirostat_tau", "min_p"])
def test_a_state_is_no_field_or_state_of_another_step(site, name):
    site.install("acme", sampler(states=f"'{name}',"))
    with pytest.raises(SettingsError, match=f"carries the state '{name}', which is a field or"):
        composed(samplers=["default", "acme"])


@pytest.mark.parametrize(
    ("names", "samplers"), [(["temperature"], "none"), (["default", "acme"], "acme, torch_gumbel")]
)
def test_exactly_one_step_samples(site, names, samplers):
    site.install("acme", sampler(stage="sample"))
    with pytest.raises(SettingsError, match=f"exactly one step that samples, got {samplers};"):
        composed(samplers=names)


def test_the_tool_parser_is_found_by_the_chat_template(site):
    site.install("acme", parser())
    choice = composed(HERMES_TEMPLATE).tool_parser
    assert choice.name == "hermes"
    assert "the chat template has" in choice.reason
    assert reasons(choice)["acme"] == "the chat template has no <acme>"
    assert composed("<acme>").tool_parser.name == "acme"


def test_among_parsers_that_match_the_priority_decides(site):
    site.install("acme", parser(priority="9"))
    choice = composed(HERMES_TEMPLATE + "<acme>").tool_parser
    assert choice.name == "acme"
    assert reasons(choice)["hermes"] == "acme has priority"


def test_a_parser_of_lower_priority_is_not_taken_for_its_name(site):
    site.install("acme", parser(priority="-1"))
    choice = composed(HERMES_TEMPLATE + "<acme>").tool_parser
    assert choice.name == "hermes"
    assert reasons(choice)["acme"] == "hermes has priority"


def test_a_parser_may_be_for_an_architecture(site):
    site.install("acme", parser(architectures="('Gpt5', 'Gpt6')"))
    choice = composed(HERMES_TEMPLATE + "<acme>").tool_parser
    assert (choice.name, reasons(choice)["acme"]) == ("hermes", "it is for Gpt5 and Gpt6")


def test_a_parser_for_the_models_architecture_is_taken(site):
    site.install("acme", parser(architectures="('LlamaForCausalLM',)", priority="1"))
    choice = composed(HERMES_TEMPLATE + "<acme>").tool_parser
    assert choice.name == "acme"
    assert choice.reason == (
        "auto: the chat template has <acme> and the model is a LlamaForCausalLM"
    )


def test_no_parser_is_taken_when_none_matches():
    composition = composed("{{ messages }}")
    assert composition.tool_parser is None
    assert composition.reasoning_parser is None


def test_a_parser_without_markers_is_taken_only_by_name(site):
    site.install("acme", parser(markers=""))
    assert (
        reasons(composed(HERMES_TEMPLATE).tool_parser)["acme"] == "it declares no markers for auto"
    )
    assert composed(tool_call_parser="acme").tool_parser.name == "acme"


def test_a_parser_of_another_interface_version_is_passed_over(site):
    site.install("acme", parser(priority="9").replace("api=1", "api=7"))
    assert composed("<acme>").tool_parser is None


def test_parts_can_be_switched_off():
    composition = composed(HERMES_TEMPLATE, tool_call_parser="none", structured_output="none")
    assert composition.tool_parser is None
    assert composition.structured_output == ()


def test_there_is_no_lora_source_unless_lora_is_on():
    assert composed().lora_source is None
    assert composed(enable_lora=True).lora_source.name == "peft"


def test_lora_for_a_model_that_does_not_support_it_is_refused(site):
    site.install("acme", MODEL.replace("OPTIONS", "supports_lora=False"))
    with pytest.raises(RefusedError, match="'AcmeForCausalLM' does not support LoRA"):
        composed(config={"architectures": ["AcmeForCausalLM"]}, enable_lora=True)


EXECUTOR = """
    from quire import hookimpl
    from quire.interfaces.executor import ExecutorCapabilities

    @hookimpl
    def register_executors(registry):
        there = ExecutorCapabilities(max_tensor_parallel_size=8)
        registry.add("acme", "quire.errors:QuireError", capabilities=there, api=2)
"""


def test_an_executor_with_too_few_devices_is_refused_with_those_that_can(site):
    site.install("acme", EXECUTOR)
    with pytest.raises(RefusedError, match=r"'in_process' supports .* at most 1, .* it: .*acme"):
        composed(tensor_parallel_size=2, executor="in_process")


def test_a_contested_executor_hides_no_refusal(site):
    site.install("acme", EXECUTOR)
    site.install("other", EXECUTOR)
    with pytest.raises(RefusedError, match=r"that support it: (\w+, )*acme(, \w+)*$"):
        composed(tensor_parallel_size=2, executor="in_process")


def test_heads_must_be_divisible_among_devices(site):
    site.install("acme", EXECUTOR)
    with pytest.raises(
        SettingsError, match=r"tensor_parallel_size 3 does not divide .* 4 attention"
    ):
        composed(tensor_parallel_size=3, executor="acme")
    assert composed(tensor_parallel_size=2, executor="acme").executor.name == "acme"


def test_a_model_without_tensor_parallelism_is_refused(site):
    site.install("acme", EXECUTOR)
    site.install(
        "acme-model",
        MODEL.replace("acme:", "acme_model:").replace("OPTIONS", "supports_tensor_parallel=False"),
    )
    with pytest.raises(RefusedError, match="does not support tensor parallelism"):
        composed(
            config={"architectures": ["AcmeForCausalLM"]}, tensor_parallel_size=2, executor="acme"
        )


def test_a_broken_plugin_that_was_not_selected_stops_nothing(site):
    site.install("broken", "import no_such_module")
    assert composed().model.name == "LlamaForCausalLM"


INVARIANT = {"batch_invariant": True}


def test_batch_invariant_mode_is_served_by_a_backend_that_declares_it(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=9"))
    assert backend_of(composed(**INVARIANT)).name == "torch_sdpa"
    assert backend_of(composed()).name == "acme"


def test_a_backend_that_promises_no_equal_bits_is_refused_with_the_reason(site):
    site.install("acme", BACKEND.replace("OPTIONS", "priority=9"))
    with pytest.raises(RefusedError, match=r"'acme' .* does not support batch-invariant mode"):
        composed(attention_backend="acme", **INVARIANT)


def test_batch_invariant_mode_on_a_gpu_needs_kernels():
    with pytest.raises(RefusedError, match=r"needs Triton kernels.*leave out --batch-invariant"):
        composed(machine=Machine(frozenset({"avx2"}), has_cuda=True), device="cuda", **INVARIANT)


PLAIN = {"cpu_flags": frozenset(), "has_cuda": False}
TRITON = Machine(**PLAIN, has_triton=True)
INTERPRETER = Machine(**PLAIN, has_triton=True, interprets_kernels=True)
GPU = Machine(frozenset(), has_cuda=True, has_triton=True, compute_capability=90)


@pytest.mark.parametrize(
    ("machine", "wanted", "kernels"),
    [
        (MACHINE, "auto", "torch"),
        (TRITON, "auto", "torch"),
        (INTERPRETER, "auto", "torch"),
        (INTERPRETER, "triton", "triton"),
        (GPU, "auto", "triton"),
        (GPU, "torch", "torch"),
        (Machine(frozenset(), has_cuda=True), "auto", "torch"),
    ],
)
def test_kernels_run_where_there_is_a_gpu_and_triton(machine, wanted, kernels):
    composition = composed(machine=machine, kernels=wanted)
    assert composition.kernels.value == kernels
    samplers = {"torch": "torch_gumbel", "triton": "gumbel"}
    assert composition.samplers[-1].name == samplers[kernels]


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        (MACHINE, "the package triton is not installed"),
        (TRITON, "the device is cpu, where only Triton's interpreter can run them"),
    ],
)
def test_kernels_that_cannot_run_are_refused_with_the_reason(machine, reason):
    with pytest.raises(RefusedError, match=f"{reason}; use --kernels torch"):
        composed(machine=machine, kernels="triton")


def test_the_log_says_what_runs_and_in_what(caplog):
    caplog.set_level("INFO", "quire")
    log_composition(composed(machine=GPU, kv_cache_dtype="bfloat16", enforce_eager=True))
    line = (
        "kernels: triton (auto: this GPU supports them); KV cache in bfloat16; "
        "CUDA graphs: none: --enforce-eager"
    )
    assert line in caplog.messages


RIVAL = """
    from importlib.metadata import entry_points
    from quire import hookimpl
    from quire.plugins.kinds import KINDS

    OWN = [p.load() for p in entry_points(group="quire") if p.dist.name == "quire"]

    def offer_the_same(hook):
        def register(registry):
            for module in OWN:
                if hook in vars(module):
                    vars(module)[hook](registry)
        return register

    for kind in KINDS:
        hook = f"register_{kind.name}"
        vars()[hook] = hookimpl(offer_the_same(hook))
"""
NAMED = {
    "attention_backend": "torch_sdpa",
    "samplers": ["default", "min_p"],
    "structured_output": "outlines",
    "tool_call_parser": "hermes",
    "reasoning_parser": "think_tags",
    "enable_lora": True,
    "lora_source": "peft",
    "executor": "in_process",
    "scheduling_policy": "priority",
    "kv_store": "host_memory",
    "quantization": "none",
}


@pytest.mark.parametrize("options", [{}, NAMED], ids=["chosen", "named"])
def test_a_plugin_that_offers_all_of_quires_names_changes_nothing(site, options):
    before = composed(HERMES_TEMPLATE, machine=COMPILES, **options)
    site.install("acme", RIVAL)
    composition = composed(HERMES_TEMPLATE, machine=COMPILES, **options)
    assert composition.fingerprint() == before.fingerprint()
    for choice in composition.choices:
        assert [str(source) for source in choice.entry.passed_over] == ["acme (acme 1.0)"]
        assert reasons(choice) == {
            rejection.name: rejection.reason for rejection in choice.rejected
        }


def test_of_names_that_others_offer_the_log_warns_once_each_and_says_the_way(site, caplog):
    site.install("acme", RIVAL)
    site.install("other", RIVAL)
    composition = composed(HERMES_TEMPLATE)
    assert caplog.messages == []
    log_composition(composition)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    of_specs = [line for line in warnings if line.startswith("KV-cache spec 'full_attention'")]
    assert of_specs == [
        "KV-cache spec 'full_attention' is also offered by acme (acme 1.0) and other (other 1.0); "
        "quire's own is used; to use another, set --prefer kv_cache_specs:full_attention=acme or "
        "--prefer kv_cache_specs:full_attention=other"
    ]
    contested = [line for line in warnings if "is also offered by" in line]
    assert len(contested) == len(composition.choices)


def test_a_choice_says_whose_offer_of_its_name_was_passed_over(site):
    site.install("acme", RIVAL)
    choice = composed().model
    (other,) = choice.as_dict()["rejected"]
    assert other["name"] == "LlamaForCausalLM of acme (acme 1.0)"
    assert other["reason"].endswith("--prefer models:LlamaForCausalLM=acme would use it")


def test_a_preference_takes_the_third_partys_part_and_warns_of_nothing(site):
    site.install("acme", RIVAL)
    composition = composed(prefer=["models:LlamaForCausalLM=acme", "samplers:min_p=acme"])
    assert composition.model.entry.source.plugin == "acme"
    by_name = {choice.name: choice.entry for choice in composition.samplers}
    assert by_name["min_p"].source.plugin == "acme"
    assert by_name["min_p"].passed_over == ()
    assert by_name["temperature"].source.is_ours


def test_without_quires_own_a_name_that_is_needed_is_contested_by_third_parties(site):
    site.install("acme", SPEC)
    site.install("other", SPEC)
    with pytest.raises(ContestedNameError, match=r"KV-cache spec 'full_attention' is offered by"):
        composed(plugins=["no:quire_kv_cache_specs"])
    prefer = ["kv_cache_specs:full_attention=other"]
    composition = composed(plugins=["no:quire_kv_cache_specs"], prefer=prefer)
    assert composition.kv_cache_specs[0].entry.source.plugin == "other"


SPEC = """
    from quire import hookimpl
    from quire.interfaces.kv_cache import KVSpecCapabilities

    @hookimpl
    def register_kv_cache_specs(registry):
        registry.add("full_attention", "json:loads", capabilities=KVSpecCapabilities())
"""


def of_ours(registries, template="", config=(), machine=MACHINE, probe=None, **options):
    """Compose from the registries of quire's own plugins, without discovery."""
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    settings = Settings.from_options(options)
    return compose(settings, Plugins(registries), checkpoint, template, machine, probe)


def with_entries(registries, **entries):
    """Return the registries of quire with some entries changed, by KIND__NAME."""
    changed = Registries()
    for registry in registries:
        for entry in registry.offers():
            edit = entries.get(f"{entry.kind.name}__{entry.name}", {})
            changed[registry.kind.name].accept([replace(entry, **edit)])
    return changed


@pytest.mark.parametrize("length", [2, 127, 128])
def test_every_length_up_to_the_models_is_taken(quire_registries, length):
    assert of_ours(quire_registries, max_model_len=length).max_model_len == length


@pytest.mark.parametrize("length", [129, 130, 1000])
def test_a_length_beyond_the_models_is_refused(quire_registries, length):
    with pytest.raises(
        SettingsError, match=f"max_model_len is {length}, but .* maximum length is 128"
    ):
        of_ours(quire_registries, max_model_len=length)


PARTS = {
    "models__LlamaForCausalLM": {},
    "kv_cache_specs__full_attention": {},
    "samplers__temperature": {},
    "structured_output__outlines": {"structured_output": "outlines"},
    "tool_parsers__hermes": {"tool_call_parser": "hermes"},
    "reasoning_parsers__think_tags": {"reasoning_parser": "think_tags"},
    "lora_sources__peft": {"enable_lora": True},
    "scheduling_policies__fcfs": {},
    "kv_stores__host_memory": {"kv_store": "host_memory"},
    "executors__in_process": {},
    "attention_backends__torch_sdpa": {"attention_backend": "torch_sdpa"},
    "quantizations__int8": {"quantization": "int8", "machine": COMPILES, "dtype": "float32"},
}


@pytest.mark.parametrize("part", PARTS)
def test_every_part_that_is_used_must_speak_its_interface(quire_registries, part):
    registries = with_entries(quire_registries, **{part: {"api": 7}})
    with pytest.raises(
        ApiVersionError, match=rf"{part.partition('__')[2]}' of .* has interface version 7"
    ):
        of_ours(registries, **PARTS[part])


@pytest.mark.parametrize("part", PARTS)
def test_every_part_that_is_used_must_be_there(quire_registries, part):
    registries = with_entries(quire_registries, **{part: {"reference": "no_such_module:Part"}})
    with pytest.raises(
        PluginLoadError, match=r"'no_such_module:Part', and there is no such module"
    ):
        of_ours(registries, **PARTS[part])


def test_a_model_of_another_version_is_not_even_asked_to_describe_itself(quire_registries):
    there = ModelCapabilities(describe="no_such_module:describe")
    edit = {"models__LlamaForCausalLM": {"api": 7, "capabilities": there}}
    with pytest.raises(ApiVersionError):
        of_ours(with_entries(quire_registries, **edit))


def executes(registries, most):
    edit = {"executors__in_process": {"capabilities": ExecutorCapabilities(most)}}
    return with_entries(registries, **edit)


def test_an_executor_runs_as_many_devices_as_it_says(quire_registries):
    registries = executes(quire_registries, 2)
    named = {"executor": "in_process"}
    assert of_ours(registries, tensor_parallel_size=2, **named).executor.name == "in_process"
    with pytest.raises(RefusedError, match="of at most 2, and 3 is set"):
        of_ours(registries, tensor_parallel_size=3, **named)


def test_it_is_the_heads_that_devices_share(quire_registries):
    registries = executes(quire_registries, 8)
    of_ours(registries, tensor_parallel_size=4)  # of 4 heads and 2 layers
    with pytest.raises(SettingsError, match="does not divide the model's 6 attention heads"):
        of_ours(registries, config={"num_attention_heads": 6, "num_hidden_layers": 4,
                "num_key_value_heads": 2, "head_dim": 16}, tensor_parallel_size=4)  # fmt: skip


def test_a_dtype_of_the_checkpoint_that_does_not_exist_is_refused_with_the_way_out():
    config = {**CONFIG, "torch_dtype": "bfloat61"}
    with pytest.raises(UnsupportedModelError, match=r"dtype 'bfloat61' .* give --dtype float32"):
        composed(config=config)
    assert composed(config=config, dtype="float32").dtype.value == "float32"


def test_a_dtype_that_was_asked_for_gives_way_to_nothing(quire_registries):
    with pytest.raises(RefusedError, match=r"cannot compute in bfloat16: .*use --dtype float32"):
        of_ours(quire_registries, machine=COMPILES, dtype="bfloat16", kernels="native")


NO_COMPILER = Machine(frozenset({"avx2", "avx512_bf16"}), has_cuda=False)


def test_a_dtype_that_was_not_asked_for_gives_way_to_a_named_part(quire_registries):
    assert of_ours(quire_registries, machine=NO_COMPILER).dtype.value == "bfloat16"
    entry = quire_registries.attention_backends.entry("cpu")
    by_torch = replace(entry.capabilities, needs_native=False)
    registries = with_entries(quire_registries, attention_backends__cpu={"capabilities": by_torch})
    named = of_ours(registries, machine=NO_COMPILER, attention_backend="cpu")
    assert named.dtype == Decision("float32", "--attention-backend cpu computes in it")
    kept = of_ours(registries, machine=NO_COMPILER, attention_backend="torch_sdpa")
    assert kept.dtype.value == "bfloat16"


def test_where_a_named_part_has_no_float32_either_the_machines_type_stays(quire_registries):
    entry = quire_registries.attention_backends.entry("torch_sdpa")
    changed = replace(entry.capabilities, dtypes=frozenset({"float16"}))
    registries = with_entries(
        quire_registries, attention_backends__torch_sdpa={"capabilities": changed}
    )
    with pytest.raises(RefusedError, match="dtype bfloat16 is not among float16"):
        of_ours(registries, machine=NO_COMPILER, attention_backend="torch_sdpa")


def test_the_parts_are_chosen_again_without_those_that_cannot_run(quire_registries):
    whole = of_ours(quire_registries, machine=COMPILES)
    assert backend_of(whole).name == "cpu"

    def without(word, machine=COMPILES, **options):
        def probe(parts):
            asked.append(set(parts))
            return {name: f"no {word}" if word in name else None for name in parts}

        asked = []
        composition = of_ours(quire_registries, machine=machine, probe=probe, **options)
        names = [name for names in asked for name in names]
        assert len(names) == len(set(names)), "a probe runs once"
        return composition

    assert without("nothing") == whole
    assert without("gumbel").samplers[-1].name == "torch_gumbel"
    assert reasons(without("gumbel").samplers[-1]) == {"cpu_gumbel": "no gumbel"}
    assert [each.reason for each in without("gumbel").unavailable] == ["no gumbel"]
    assert backend_of(without("gumbel")).name == "cpu"
    other = backend_of(without("cpu_library"))
    assert other.name == "torch_sdpa"
    assert reasons(other)["cpu"] == "no cpu_library"
    packed = without("linear_library")
    assert packed.quantization.value is None
    assert packed.kernels.value == "native"
    assert packed.cpu_graphs.reason == "torch computes linear layers"
    assert reasons(packed.quantization)["bf16"] == "no linear_library"
    torch = without("LAYERS")
    assert torch.kernels == Decision("torch", "no LAYERS")
    assert torch.machine.native_unavailable_reason == "no LAYERS"
    assert backend_of(torch).name == "torch_sdpa"
    assert without("ADAPTERS").kernels.value == "native"
    assert without("ADAPTERS", enable_lora=True).kernels == Decision("torch", "no ADAPTERS")


def test_a_compute_type_follows_from_whether_the_kernels_can_run(quire_registries):
    machine = replace(COMPILES, cpu_flags=frozenset({"avx2", "avx512_bf16"}))

    def no_layers(parts):
        return {name: "no layers" if "LAYERS" in name else None for name in parts}

    assert of_ours(quire_registries, machine=machine).dtype.value == "float32"
    composition = of_ours(quire_registries, machine=machine, probe=no_layers)
    assert composition.dtype.value == "bfloat16"
    assert composition.hidden_dtype == "bfloat16"


def test_a_parser_needs_all_of_its_markers(quire_registries):
    there = replace(
        quire_registries.tool_parsers.entry("hermes").capabilities, template_markers=("<a>", "<b>")
    )
    registries = with_entries(quire_registries, tool_parsers__hermes={"capabilities": there})
    assert of_ours(registries, "<a> and <b>").tool_parser.name == "hermes"
    assert of_ours(registries, "<a>").tool_parser is None
    assert of_ours(registries, "<b>").tool_parser is None


@pytest.mark.parametrize("api", [0, 2])
def test_auto_takes_no_parser_of_an_older_or_newer_interface(quire_registries, api):
    registries = with_entries(quire_registries, tool_parsers__hermes={"api": api})
    assert of_ours(registries, HERMES_TEMPLATE).tool_parser is None


def test_what_workers_compare_has_every_part_with_its_version(quire_registries):
    composition = of_ours(quire_registries, HERMES_TEMPLATE, enable_lora=True)
    source = Source("quire_samplers", "quire", "9.9")
    other = of_ours(
        with_entries(quire_registries, samplers__min_p={"source": source}),
        HERMES_TEMPLATE,
        enable_lora=True,
    )
    assert composition.fingerprint() != other.fingerprint()
    kinds = [kind for kind, *_ in composition.fingerprint()]
    assert {"kv_cache_specs", "samplers", "lora_sources", "tool_parsers"} <= set(kinds)
    assert kinds[:-2] == [choice.entry.kind.name for choice in composition.choices]
    assert kinds[-2:] == ["computing", "workers"]


def test_what_workers_compare_has_the_grid_and_what_they_compute_in(quire_registries):
    registries = executes(quire_registries, 4)
    named = {"executor": "in_process", "dtype": "float32"}
    one = of_ours(registries, **named).fingerprint()
    assert ("workers", "tp 1", "pp 1", "layers 2") in one
    assert ("computing", "torch", "float32", "float32 KV cache") in one
    two = of_ours(registries, tensor_parallel_size=2, **named).fingerprint()
    assert set(two) - set(one) == {("workers", "tp 2", "pp 1", "layers 2")}
    int8 = of_ours(registries, kv_cache_dtype="int8", **named).fingerprint()
    assert set(int8) - set(one) == {("computing", "torch", "float32", "int8 KV cache")}


def test_a_block_size_that_is_asked_for_is_taken(quire_registries):
    assert of_ours(quire_registries, block_size=64).block_size == 64
    assert of_ours(quire_registries).block_size == 16


def test_graphs_of_steps_with_adapters_count_too(quire_registries):
    gpu = {"machine": GPU, "device": "cuda", "max_num_seqs": 4, "config": {"hidden_size": 256}}
    plain = of_ours(quire_registries, **gpu)
    assert num_captures(plain) == 2 * 3  # of 1, 2 and 4 requests
    assert num_captures(of_ours(quire_registries, enable_lora=True, **gpu)) == 4 * 3
    assert num_captures(of_ours(quire_registries, enforce_eager=True, **gpu)) == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_specs_look_for_prefixes_only_where_prefixes_are_kept(site, keeps):
    able = "priority=9, layouts=frozenset({'kv', 'state'})"
    options = {"enable_prefix_caching": keeps}
    composition = layered(site, FULL, STATE, backend=able, **options)
    settings = Settings.from_options(options)
    full, state = layer_specs(settings, composition, load_plugins().registries)
    assert full.blocks_needed(32) == 1
    assert state.blocks_needed(1000) > 1 if keeps else state.blocks_needed(1000) == 1


def test_the_compute_type_follows_the_checkpoints_own_method(quire_registries):
    declared = quire_registries.quantizations.entry("int8").capabilities
    there = replace(declared, reads_prepared=True, stores_quantized=True, kernels=None)
    registries = with_entries(quire_registries, quantizations__int8={"capabilities": there})
    own = {"quantization_config": {"quant_method": "int8"}}
    composition = of_ours(registries, machine=NO_COMPILER, config=own)
    assert composition.quantization.value.name == "int8"
    assert (composition.dtype.value, composition.dtype.reason) == (
        "float32",
        "--quantization int8 computes in it",
    )


def test_auto_passes_over_a_backend_whose_module_is_not_there(quire_registries):
    gone = {"attention_backends__cpu": {"reference": "no_such_module:Part"}}
    choice = backend_of(of_ours(with_entries(quire_registries, **gone), machine=COMPILES))
    assert choice.name == "torch_sdpa"
    assert reasons(choice)["cpu"] == "there is no module for 'no_such_module:Part'"
