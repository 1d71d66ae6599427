"""Selection of the quantization method by the checkpoint, the user, or losslessness."""

from dataclasses import replace
from pathlib import Path

import pytest
from installed import sites

from quire.compose.checkpoint import Checkpoint
from quire.compose.compose import compose
from quire.compose.composition import Choice, Decision
from quire.compose.sizes.weight_bytes import weight_bytes
from quire.config import Settings
from quire.errors import ApiVersionError, PluginLoadError, RefusedError, UnknownNameError
from quire.machine.machine import Machine
from quire.plugins.loading import Plugins, load_plugins

site = pytest.fixture(sites)

COMPILES = Machine(frozenset({"avx2"}), has_cuda=False, native_unavailable_reason=None)
NO_COMPILER = Machine(
    frozenset({"avx2"}), has_cuda=False, native_unavailable_reason="there is no g++"
)
GPU = Machine(frozenset(), has_cuda=True, has_triton=True, compute_capability=90)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "torch_dtype": "bfloat16",
}
METHODS = """
    from quire import hookimpl
    from quire.interfaces.quantization import QuantizationCapabilities

    CPU, FLOAT32 = frozenset({"cpu"}), frozenset({"float32"})

    @hookimpl
    def register_quantizations(registry):
        def add(name, reference="quire.interfaces.quantization:Quantization", **options):
            there = QuantizationCapabilities(devices=CPU, dtypes=FLOAT32, **options)
            registry.add(name, reference, capabilities=there)

        add("acme4", stores_quantized=True, priority=1)
        add("acme3")
        add("acme_low", from_plain_checkpoint=True, lossless_for=FLOAT32, priority=1)
        add("acme_high", from_plain_checkpoint=True, lossless_for=FLOAT32, priority=100)
        add("acme_gone", "acme_gone:Nothing", from_plain_checkpoint=True, lossless_for=FLOAT32,
            priority=200)
"""

USELESS_METHODS = """
    from quire import hookimpl
    from quire.interfaces.quantization import QuantizationCapabilities

    @hookimpl
    def register_quantizations(registry):
        there = QuantizationCapabilities(frozenset({"cuda"}), frozenset({"float32"}))
        method = "quire.interfaces.quantization:Quantization"
        registry.add("acme_new", method, api=99, capabilities=there)
        registry.add("acme_gone", "acme_gone:Nothing", capabilities=there)
"""


def composed(machine=COMPILES, config=(), probe=None, **options):
    settings = Settings.from_options(options)
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    return compose(settings, load_plugins(settings.plugins), checkpoint, "", machine, probe)


def reasons(choice):
    return {rejection.name: rejection.reason for rejection in choice.rejected}


def own(name):
    options = {"bits": 4, "group_size": 128, "sym": True} if name == "gptq" else {}
    return {"quantization_config": {"quant_method": name, **options}}


def test_bfloat16_weights_stay_as_they_are_where_compiled_kernels_multiply_them():
    composition = composed()
    assert composition.quantization.value.name == "bf16"
    assert composition.dtype.value == "float32"
    assert composition.weights == "bf16 (auto: it is lossless for bfloat16 weights)"
    rejected = reasons(composition.quantization.value)
    assert rejected["int8"] == "it is not lossless for bfloat16 weights"
    assert ("quantizations", "bf16", "quire", composition.quire_version) in (
        composition.fingerprint()
    )


@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_weights_of_formats_that_models_are_published_in_may_be_quantized_anew(name):
    composition = composed(config=own(name))
    assert composition.prepared_quantization.name == name
    assert ("quantizations", name, "quire", composition.quire_version) in composition.fingerprint()
    assert composed(config=own(name), quantization="int8").quantization.value.name == "int8"


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_weights_that_were_rounded_are_not_rounded_again(name):
    with pytest.raises(RefusedError, match=f"quantized by '{name}', and would be rounded twice"):
        composed(config=own(name), quantization="int8")
    for given in ("auto", name, "none"):
        assert composed(config=own(name), quantization=given).prepared_quantization.name == name
    assert composed(config=own(name), quantization="none").quantization.value is None


def test_the_reader_of_another_format_is_refused_with_both_names():
    with pytest.raises(RefusedError, match="reads checkpoints that are quantized by 'awq', and"):
        composed(config=own("gptq"), quantization="awq")


def test_codes_are_kept_where_compiled_kernels_multiply_them():
    composition = composed(config=own("gptq"))
    assert composition.weights == "codes (the checkpoint's own: gptq)"
    assert composed(config=own("gptq"), quantization="codes").quantization.value.name == "codes"
    with pytest.raises(RefusedError, match="needs a checkpoint that was quantized for it"):
        composed(quantization="codes")
    composition = composed(NO_COMPILER, config=own("gptq"))
    assert composition.quantization.value is None
    assert composition.weights.startswith(
        "float32 (auto: gptq is dequantized; codes: it needs native kernels: there is no g++"
    )


def test_inputs_of_codes_are_rounded_to_integers_only_by_name():
    for given in ("auto", "gptq", "codes"):
        method = composed(config=own("gptq"), quantization=given).quantization.value
        assert method.name == "codes"
    composition = composed(config=own("gptq"), quantization="codes_int8")
    assert composition.weights == "codes_int8 (asked for)"
    with pytest.raises(RefusedError, match="needs a checkpoint that was quantized for it"):
        composed(quantization="codes_int8")


def test_where_no_method_keeps_codes_the_weights_are_dequantized_and_the_reason_said():
    composition = composed(GPU, config=own("gptq"), kernels="torch")
    assert composition.quantization.value is None
    assert composition.weights.startswith("bfloat16 (auto: gptq is dequantized")
    assert "triton_codes: it needs triton kernels: --kernels torch" in composition.weights


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_gpu_keeps_the_codes_of_a_checkpoint(dtype):
    composition = composed(GPU, config=own("awq"), dtype=dtype)
    assert composition.weights == "triton_codes (the checkpoint's own: awq)"
    assert composed(GPU, config=own("awq"), quantization="none").quantization.value is None
    with pytest.raises(RefusedError, match="it needs a checkpoint that was quantized for it"):
        composed(GPU, quantization="triton_codes")


@pytest.mark.parametrize(
    ("machine", "options", "why"),
    [
        (NO_COMPILER, {}, "there is no g++"),
        (COMPILES, {"kernels": "torch"}, "--kernels torch"),
    ],
    ids=["no compiler", "off"],
)
def test_without_compiled_kernels_weights_are_kept_in_the_compute_type(machine, options, why):
    composition = composed(machine, **options)
    assert composition.quantization.value is None
    assert composition.dtype.value == "float32"
    assert composition.weights == (
        "float32 (auto: float32 represents all bfloat16 values; "
        f"bf16: it needs native kernels: {why})"
    )


def test_a_compute_type_that_rounds_is_said_to():
    composition = composed(GPU, dtype="float16")
    assert composition.weights.startswith("float16 (auto: float16 rounds all bfloat16 values")


def test_weights_in_the_compute_type_need_no_method():
    composition = composed(GPU)
    assert composition.weights == "bfloat16 (auto: the checkpoint's own dtype)"
    assert all(choice.entry.kind.name != "quantizations" for choice in composition.choices)


def test_none_keeps_weights_in_the_compute_type():
    composition = composed(quantization="none")
    assert composition.quantization.value is None
    assert composition.weights == "float32 (asked for)"


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_what_costs_accuracy_is_taken_only_when_it_is_asked_for(name):
    composition = composed(quantization=name)
    choice = composition.quantization.value
    assert (choice.name, choice.reason) == (name, composition.quantization.reason)
    assert choice.reason == "asked for"
    for dtype in ("float32", "bfloat16", "float16"):
        chosen = composed(config={"torch_dtype": dtype}).quantization.value
        assert chosen is None or chosen.name != name


@pytest.mark.parametrize("name", ["int8", "int4", "bf16"])
def test_packed_weights_need_native_kernels(name):
    with pytest.raises(
        RefusedError, match=r"needs native kernels: there is no g\+\+; methods that can: none"
    ):
        composed(NO_COMPILER, quantization=name)
    with pytest.raises(
        RefusedError, match="needs native kernels: --kernels torch; methods that can: none"
    ):
        composed(quantization=name, kernels="torch")


def test_a_method_that_cannot_serve_is_refused_with_those_that_can():
    with pytest.raises(RefusedError, match=r"cuda is not among cpu; methods that can: none of"):
        composed(GPU, quantization="int8")
    with pytest.raises(RefusedError, match=r"bfloat16 is not among float32; set --dtype float32;"):
        composed(quantization="int8", dtype="bfloat16")


def test_an_unknown_method_is_refused_with_a_hint():
    with pytest.raises(UnknownNameError, match=r"unknown quantization method 'int9'; did you mean"):
        composed(quantization="int9")


@pytest.mark.parametrize(
    ("name", "error", "why"),
    [
        ("acme_new", ApiVersionError, "has interface version 99;"),
        ("acme_gone", PluginLoadError, "refers to 'acme_gone:Nothing', and there is no such"),
    ],
)
def test_what_a_method_can_is_not_asked_where_its_code_is_of_no_use(site, name, error, why):
    site.install("acme", USELESS_METHODS)
    with pytest.raises(error, match=f"{name}.*{why}"):
        composed(quantization=name)


def test_auto_takes_the_highest_priority_of_those_that_keep_weights_exactly(site):
    site.install("acme", METHODS)
    composition = composed(config={"torch_dtype": "float32"})
    assert composition.quantization.value.name == "acme_high"
    rejected = reasons(composition.quantization.value)
    assert rejected["acme_low"] == "supported, but acme_high has priority"
    assert rejected["acme_gone"] == "there is no module for 'acme_gone:Nothing'"
    assert "acme4" in rejected


def test_the_checkpoints_own_method_is_taken_and_no_other(site):
    site.install("acme", METHODS)
    composition = composed(config=own("acme4"))
    assert composition.weights == "acme4 (the checkpoint's own: acme4)"
    assert composed(config=own("acme4"), quantization="acme4").quantization.value.name == "acme4"
    assert composed(config=own("acme3")).quantization.value.name == "acme4"
    for name in ("acme3", "acme4"):
        with pytest.raises(RefusedError, match=f"--quantization int8: .* quantized by '{name}'"):
            composed(config=own(name), quantization="int8")


def test_the_checkpoints_own_method_must_be_able_to_serve(site):
    site.install("acme", METHODS)
    with pytest.raises(RefusedError, match=r"'acme4' of .* cannot be used here: device cuda"):
        composed(GPU, own("acme4"))


def test_a_method_for_prepared_checkpoints_is_refused_for_an_ordinary_one(site):
    site.install("acme", METHODS)
    with pytest.raises(RefusedError, match="needs a checkpoint that was quantized for it"):
        composed(quantization="acme4")


@pytest.mark.parametrize("own_method", ["int8", "bf16"])
def test_a_method_for_ordinary_checkpoints_reads_no_prepared_one(own_method):
    with pytest.raises(RefusedError, match=f"{own_method!r} of .* only unquantized checkpoints"):
        composed(config=own(own_method))


def test_a_checkpoint_of_an_unknown_method_is_refused_with_the_known_ones(site):
    with pytest.raises(UnknownNameError, match=r"'hqq', and no installed plugin .*: .*gptq"):
        composed(config=own("hqq"))
    site.install("acme", METHODS)
    with pytest.raises(UnknownNameError, match=r"read quantized checkpoints: .*acme4, .*acme_gone"):
        composed(config=own("hqq"))


@pytest.mark.parametrize(
    ("option", "value"),
    [("kernels", "native"), ("quantization", "int8"), ("attention_backend", "cpu")],
)
def test_a_named_part_of_native_kernels_that_do_not_multiply_bfloat16(option, value):
    """Torch does, which `--dtype bfloat16` alone would choose."""
    machine = replace(COMPILES, cpu_flags=frozenset({"avx2", "avx512_bf16"}))
    assert composed(machine, **{option: value}).dtype.value == "float32"
    with pytest.raises(RefusedError, match="--dtype float32"):
        composed(machine, dtype="bfloat16", **{option: value})


def test_named_kernels_without_a_compiler_are_refused_for_that():
    machine = replace(NO_COMPILER, cpu_flags=frozenset({"avx2", "avx512_bf16"}))
    with pytest.raises(RefusedError, match=r"cannot run here: there is no g\+\+"):
        composed(machine, kernels="native")


def no_products(parts):
    return {name: "g++ failed" if "linear_library" in name else None for name in parts}


def test_a_method_that_cannot_run_is_not_chosen_and_the_decision_has_the_reason():
    composition = composed(probe=no_products)
    assert composition.quantization.value is None
    assert composition.weights == (
        "float32 (auto: float32 represents all bfloat16 values; bf16: g++ failed)"
    )
    assert reasons(composition.quantization)["bf16"] == "g++ failed"


@pytest.mark.parametrize("name", ["bf16", "int8"])
def test_a_named_method_that_cannot_run_is_refused(name):
    with pytest.raises(RefusedError, match=rf"--quantization {name}: .* used here: g\+\+"):
        composed(quantization=name, probe=no_products)


@pytest.mark.parametrize("is_tied", [True, False])
def test_whether_the_head_is_the_embedding_is_the_models_word(is_tied):
    """Gemma 3 is tied unless its config says otherwise."""
    config = {"architectures": ["Gemma3ForCausalLM"], "head_dim": 16, "hidden_activation": None}
    config |= {"sliding_window": 32, "query_pre_attn_scalar": 16, "rms_norm_eps": 1e-6}
    given = {} if is_tied else {"tie_word_embeddings": False}
    composition = composed(config=config | given)
    assert composition.description.has_tied_head is is_tied
    assert composition.description.num_params * 2 == weight_bytes(composition, 1)


def weighed(registries, tp_size=1, num_params=1000, is_tied=False, **capabilities):
    """The bytes of a model with a head of 10 times 8 elements, in float32 or by a method."""
    settings = Settings.from_options({"dtype": "float32", "quantization": "none"})
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG)
    composition = compose(settings, Plugins(registries), checkpoint, "", COMPILES)
    described = replace(
        composition.description, vocab_size=10, hidden_size=8, num_params=num_params,
        has_tied_head=is_tied, checkpoint_dtype="float16",
    )  # fmt: skip
    choice = None
    if capabilities:
        entry = registries.quantizations.entry("int8")
        there = replace(entry.capabilities, **{"head_bits": None} | capabilities)
        choice = Choice("quantization", replace(entry, capabilities=there), "asked for")
    return weight_bytes(
        replace(composition, description=described, quantization=Decision(choice, "asked for")),
        tp_size,
    )


def test_weights_in_the_compute_type_are_shared_by_devices(quire_registries):
    assert weighed(quire_registries) == 4000
    layers, vocabulary, norm = 1000 - 160 - 8, 160, 8
    assert weighed(quire_registries, tp_size=2) == 4 * (layers // 2 + vocabulary // 2 + norm)
    # Four devices have a head each of two: 2 more of K and V, of 16 * 8 elements, in both layers.
    # A shard of the vocabulary has 3 rows of 10 / 4.
    repeated = 2 * 2 * 16 * 8 * 2
    expected = 4 * ((layers + repeated) // 4 + 2 * 3 * 8 + norm)
    assert weighed(quire_registries, tp_size=4) == expected


def test_a_method_keeps_linear_layers_and_the_head_and_no_embedding(quire_registries):
    linear, head, embedding = 1000 - 80 - 80, 80, 80
    assert weighed(quire_registries, weight_bits=8) == linear + head + 2 * embedding
    by_head = weighed(quire_registries, weight_bits=8, head_bits=16)
    assert by_head == linear + 2 * head + 2 * embedding
    assert weighed(quire_registries, weight_bits=None) == 4 * (linear + head) + 2 * embedding
    tied = weighed(quire_registries, is_tied=True, weight_bits=8, head_bits=16)
    assert tied == (1000 - 80) + 2 * head
    assert weighed(quire_registries, tp_size=2, weight_bits=8) == (linear + head + 160) // 2 + 4
