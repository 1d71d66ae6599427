"""A cache of fewer bits holds more tokens and gives nearly the same output with each backend."""

import pytest
from cpp_compilers import NEEDS_COMPILER

from quire import LLM, SamplingParams
from quire.config import KV_CACHE_DTYPES, Settings
from quire.errors import RefusedError, SettingsError
from quire.interfaces.kv_cache import DTYPE_BYTES, SCALE_BYTES
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint

MARKS = {"torch_sdpa": (), "cpu": NEEDS_COMPILER}
QUANTIZED = ("int8", "fp8")
OTHER = "Something else altogether, which is long enough to need all the blocks that there are now."
PROMPT = "The quick brown fox jumps over the lazy dog, and then it does so again and again."
GREEDY = SamplingParams(max_tokens=8, temperature=0, logprobs=0)


def served_pairs():
    """Each installed backend that attends on a CPU, with each quantized type that it declares.

    Those that are interpreted there are slow.
    """
    registry = load_plugins().registries.attention_backends
    there = {name: registry.entry(name).capabilities for name in registry}
    return [
        pytest.param(name, wanted, marks=MARKS.get(name, pytest.mark.slow))
        for name, declared in there.items()
        for wanted in QUANTIZED
        if "cpu" in declared.devices
        and "kv" in declared.layouts
        and KV_CACHE_DTYPES[wanted] in declared.kv_dtypes
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    sizes = {"head_dim": 32, "max_position_embeddings": 256}
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", **sizes).folder)


@pytest.fixture(scope="module")
def exact(folder):
    """The tokens and logprobs of an engine whose cache loses nothing."""
    with LLM(folder) as llm:
        return llm.generate([PROMPT], GREEDY)[0].outputs[0]


def logprobs_of(llm, token_ids, num_prompt):
    """The log probability of each token behind the prompt, as the engine sees it."""
    wanted = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    prompt = {"prompt_token_ids": list(token_ids)}
    rows = llm.generate([prompt], wanted)[0].prompt_logprobs[num_prompt:]
    return [next(iter(row.values())).logprob for row in rows]


def test_some_backend_serves_each_quantized_type():
    assert {pair.values[1] for pair in served_pairs()} == set(QUANTIZED)


@pytest.mark.parametrize(("backend", "wanted"), served_pairs())
def test_a_quantized_cache_gives_nearly_the_same_completions(folder, exact, backend, wanted):
    with LLM(folder) as llm:
        ids = llm.get_tokenizer().encode(PROMPT)
        every = [*ids, *exact.token_ids]
        true = logprobs_of(llm, every, len(ids))
    options = {"kv_cache_dtype": wanted, "attention_backend": backend}
    with LLM(folder, max_num_batched_tokens=16, **options) as llm:
        assert llm.composition.kv_dtype == KV_CACHE_DTYPES[wanted]
        near = logprobs_of(llm, every, len(ids))
    differences = [abs(one - other) for one, other in zip(true, near, strict=True)]
    assert max(differences) < (0.1 if wanted == "int8" else 0.5)
    assert max(differences) > 1e-6, "it is quantized"


@pytest.mark.parametrize(("backend", "wanted"), served_pairs())
def test_a_prefix_is_found_again_with_its_scales(folder, backend, wanted):
    options = {"kv_cache_dtype": wanted, "attention_backend": backend}
    with LLM(folder, **options) as llm:
        first, again = (llm.generate([PROMPT], GREEDY)[0] for _ in range(2))
    assert again.num_cached_tokens >= 64
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("backend", "wanted"), served_pairs())
def test_a_kv_store_brings_the_scales_back(folder, backend, wanted):
    options = {"kv_cache_dtype": wanted, "attention_backend": backend, "num_kv_blocks": 32}
    store = {"kv_store": "host_memory", "kv_store_options": ["max_bytes=10MiB"]}
    with LLM(folder, **options, **store) as llm:
        (first,) = llm.generate([PROMPT], GREEDY)
        for number in range(6):
            llm.generate([f"{number}. {OTHER}"], SamplingParams(max_tokens=1, temperature=0))
        (again,) = llm.generate([PROMPT], GREEDY)
        assert llm.stats().num_store_hits >= 64, "the engine has given the blocks to others"
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


@pytest.mark.parametrize("wanted", ["float32", "bfloat16", "fp8", "int8"])
def test_the_same_memory_holds_as_many_more_tokens_as_they_are_smaller(folder, wanted):
    dtype = KV_CACHE_DTYPES[wanted]
    row_bytes = 32 * DTYPE_BYTES[dtype] + SCALE_BYTES.get(dtype, 0)
    block_bytes = 3 * 2 * 16 * 2 * row_bytes  # layers, K and V, tokens, heads
    with LLM(folder, kv_cache_dtype=wanted, kv_cache_memory_bytes=10**6) as llm:
        assert llm.stats().num_blocks == 10**6 // block_bytes - 1


def test_an_unknown_type_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match=r"kv_cache_dtype must be one of auto, .*fp8.*'fp4'"):
        Settings.from_options({"kv_cache_dtype": "fp4"})


def test_a_type_that_the_named_backend_does_not_read_is_refused(folder, tmp_path, monkeypatch):
    from installed import Site

    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    site.install(
        "narrow",
        """
        from quire import hookimpl
        from quire.interfaces.attention import AttentionCapabilities

        @hookimpl
        def register_attention_backends(registry):
            some = frozenset({"float32"})
            there = AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=some, kv_dtypes=some, priority=99
            )
            registry.add("narrow", "quire.errors:QuireError", capabilities=there)
        """,
    )
    with pytest.raises(
        RefusedError, match=r"KV dtype int8 is not among float32; .* can: .*torch_sdpa"
    ):
        LLM(folder, attention_backend="narrow", kv_cache_dtype="int8")
    with LLM(folder, kv_cache_dtype="int8") as llm:
        (choice,) = llm.composition.attention_backends
        assert choice.name != "narrow"
