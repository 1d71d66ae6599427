"""Options of quantized checkpoints are checked when an engine is planned, and name the field."""

import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.compose.checkpoint import Checkpoint
from quire.compose.compose import compose
from quire.compose.sizes.weight_bytes import weight_bytes
from quire.config import Settings
from quire.errors import QuireError
from quire.interfaces.weight_codes import WeightCodes
from quire.machine.machine import Machine
from quire.plugins.loading import load_plugins

REGISTRY = load_plugins().registries.quantizations
MACHINE = Machine(frozenset({"avx2"}), has_cuda=False, native_unavailable_reason=None)
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 64,
    "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
ROUND = {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
METHOD = "compressed-tensors"


def compressed(**weights):
    group = {"targets": ["Linear"], "weights": WEIGHTS | weights}
    return {"quant_method": METHOD, "format": "pack-quantized", "config_groups": {"g": group}}


def planned(own):
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | {"quantization_config": own})
    settings = Settings.from_options({})
    return compose(settings, load_plugins(settings.plugins), checkpoint, "", MACHINE)


def wrong(base, field, *values):
    return [(base | {field: value}, field, value) for value in values]


CASES = [
    *wrong(GPTQ, "bits", 5, 9, "4", None, True, 4.0),
    *wrong(GPTQ, "group_size", 0, -2, "128", True, 1.5),
    *wrong(GPTQ, "sym", "yes", 1),
    *wrong(GPTQ, "desc_act", "true", 0),
    *wrong(GPTQ, "checkpoint_format", "marlin", 3),
    *wrong(GPTQ, "format", "bitblas"),
    *wrong(GPTQ, "pack_dtype", "int64"),
    *wrong(GPTQ, "is_marlin_format", True),
    *wrong(GPTQ, "dynamic", ["-:a"], "a"),
    (GPTQ | {"dynamic": {"+:(": {}}}, "dynamic", "+:("),
    *(
        (GPTQ | {"dynamic": {"+:a": {field: value}}}, f"dynamic.+:a.{field}", value)
        for field, values in (("bits", (4.0, 5, "4", [4])), ("group_size", (0, 1.5, "x")))
        for value in values
    ),
    (GPTQ | {"dynamic": {"+:a": 3}}, "dynamic.+:a", 3),
    *wrong(AWQ, "bits", 3, "4"),
    *wrong(AWQ, "w_bit", 8),
    *wrong(AWQ, "group_size", 0, "x"),
    *wrong(AWQ, "version", "gemv", 2),
    *wrong(ROUND, "packing_format", "auto_round:marlin", None, 3),
    *wrong(ROUND, "data_type", "mx_fp"),
    *wrong(ROUND, "bits", 5),
    *(
        (ROUND | {"extra_config": {"a.b": {"bits": value}}}, "extra_config.a.b.bits", value)
        for value in (5, 4.0, "8")
    ),
    (ROUND | {"extra_config": {"re(": {"bits": 16}}}, "extra_config", "re("),
    (ROUND | {"extra_config": {"a": 8}}, "extra_config.a", 8),
    *wrong(BNB, "load_in_4bit", "yes"),
    *wrong(BNB, "load_in_8bit", True, "no"),
    *wrong(BNB, "bnb_4bit_quant_type", "nf3", 4),
    *wrong(FP8, "weight_block_size", 128, [128], [0, 128], ["128", 128], [True, 128]),
    *wrong(FP8, "fmt", "e3m4"),
    *((compressed(num_bits=value), "num_bits", value) for value in (1, 9, "4", True)),
    *((compressed(type=value), "type", value) for value in ("fp", 3)),
    (compressed(type="float", num_bits=6), "num_bits", 6),
    *((compressed(strategy=value), "strategy", value) for value in ("token", 7)),
    *((compressed(group_size=value), "group_size", value) for value in (0, "16", 1.5, None, -1)),
    (compressed(strategy="channel"), "group_size", 128),
    (compressed(strategy="block", group_size=None), "block_structure", None),
    (compressed(block_structure=[128, 128]), "block_structure", [128, 128]),
    (compressed(strategy="block", group_size=None, block_structure="0x1"), "block_structure", 0),
    (compressed(symmetric="no"), "symmetric", "no"),
    *((compressed(actorder=value), "actorder", value) for value in ("backwards", 3)),
    (compressed() | {"config_groups": ["a"]}, "config_groups", ["a"]),
    (compressed() | {"config_groups": {"W4A16": ["Linear"]}}, "config_groups.W4A16", ["Linear"]),
    (compressed() | {"config_groups": {"a": {"weights": 5}}}, "config_groups.a.weights", 5),
    (compressed() | {"config_groups": {"a": {"targets": ["re:("]}}}, "a.targets", "re:("),
    (compressed() | {"config_groups": {"a": {"format": "marlin-24"}}}, "a.format", "marlin-24"),
    (compressed() | {"ignore": ["re:*"]}, "ignore", "re:*"),
    (compressed() | {"ignore": "lm_head"}, "ignore", "lm_head"),
    (compressed() | {"format": "sparse-24-bitmask"}, "format", "sparse-24-bitmask"),
    (compressed() | {"transform_config": "u"}, "transform_config", "u"),
    (compressed() | {"kv_cache_scheme": 8}, "kv_cache_scheme", 8),
    (compressed() | {"kv_cache_scheme": {"num_bits": "8"}}, "kv_cache_scheme.num_bits", "8"),
]  # fmt: skip


@pytest.mark.parametrize(("own", "field", "value"), CASES, ids=str)
def test_a_wrong_option_is_named_before_anything_is_loaded(own, field, value):
    with pytest.raises(QuireError) as caught:
        planned(own)
    text = str(caught.value)
    assert f"{field} in config.json" in text
    assert repr(value) in text
    assert "quire reads" in text or "must be" in text


@pytest.mark.parametrize(("own", "field", "value"), CASES, ids=str)
def test_the_reader_refuses_it_likewise(own, field, value):
    with pytest.raises(QuireError) as planning:
        planned(own)
    with pytest.raises(type(planning.value)) as reading:
        REGISTRY.load(REGISTRY.entry(own["quant_method"])).from_config(own)
    assert str(reading.value) == str(planning.value)


@pytest.mark.parametrize(
    "own",
    [
        GPTQ,
        GPTQ | {"group_size": -1, "desc_act": True, "dynamic": {"-:.*gate": {}}},
        GPTQ | {"sym": None, "dynamic": None, "checkpoint_format": None, "format": "gptq_v2"},
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True},
        ROUND,
        ROUND | {"packing_format": "auto_round:auto_awq"},
        BNB,
        {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False},
        FP8,
        {"quant_method": "fp8", "activation_scheme": "static"},
        {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        compressed(),
        compressed(strategy="channel", group_size=-1),
        compressed(strategy=None, group_size=None),
        compressed(actorder="static"),
        compressed(actorder=True),
        compressed() | {"config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        compressed() | {"config_groups": {"a": {"targets": ["Linear"], "weights": None}}},
        compressed() | {"sparsity_config": {"format": "dense"}, "transform_config": {}},
    ],
    ids=str,
)
def test_options_as_libraries_write_them_are_accepted(own):
    assert planned(own).checkpoint_codes is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
FORMATS = (GPTQ, AWQ, ROUND, BNB, FP8, compressed(), {"quant_method": "mxfp4", "fmt": ""})
OTHER_KEYS = (
    "dynamic", "checkpoint_format", "lm_head", "pack_dtype", "ignore", "kv_cache_scheme",
    "transform_config", "sparsity_config", "modules_to_not_convert",
)  # fmt: skip


@st.composite
def any_config(draw):
    """A config in which some fields, of groups too, are any JSON."""
    config = dict(draw(st.sampled_from(FORMATS)))
    keys = st.sampled_from((*list(config)[1:], *OTHER_KEYS))
    config |= draw(st.dictionaries(keys, JSON, max_size=3))
    if config["quant_method"] == METHOD and draw(st.booleans()):
        inner = draw(
            st.dictionaries(st.sampled_from((*WEIGHTS, "actorder", "block_structure")), JSON)
        )
        group = {"weights": WEIGHTS | inner, "targets": draw(JSON), "input_activations": draw(JSON)}
        config["config_groups"] = {draw(st.text(max_size=3)): group}
    return config


@given(any_config())
@settings(max_examples=300, deadline=None)
def test_no_config_ends_in_an_error_of_another_kind(own):
    describe = resolve_name(REGISTRY.entry(own["quant_method"]).capabilities.describe)
    try:
        described = describe(own)
    except QuireError as error:
        described = str(error)
    if isinstance(described, str):
        assert "in config.json" in described
    else:
        assert all(isinstance(codes, WeightCodes) for codes in described)


def test_plans_of_all_formats_need_no_torch():
    assert weight_bytes(planned(GPTQ), 1) < weight_bytes(planned(FP8), 1)
    program = (
        "import sys; from test_configs import *\n"
        "for own in (GPTQ, AWQ, ROUND, BNB, FP8, compressed(), {'quant_method': 'mxfp4'}):\n"
        "    assert weight_bytes(planned(own), 1)\n"
        "assert 'torch' not in sys.modules"
    )
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", program], check=True, cwd=here)
