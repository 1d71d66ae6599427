"""What the prefix cache finds through the whole engine, and what it must never find."""

import random
import shutil

import pytest
from adapter_parts import peft_model, randomise, save_adapter

from quire import LLM, SamplingParams
from quire.errors import InvalidRequestError, SettingsError
from quire.outputs import LoRARequest
from quire.testing.checkpoints import write_checkpoint

BLOCK_SIZE = 8
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "Qwen3ForCausalLM", seed=2)


def engine(checkpoint, **options):
    options = {"block_size": BLOCK_SIZE, "max_model_len": 160} | options
    return LLM(str(checkpoint.folder), dtype="float32", **options)


@pytest.fixture
def llm(checkpoint):
    with engine(checkpoint) as llm:
        yield llm


def prompt(length, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(3, 300) for _ in range(length)]


def complete(llm, token_ids, **options):
    (result,) = llm.generate({"prompt_token_ids": list(token_ids)} | options, GREEDY)
    return result


@pytest.mark.parametrize(("length", "found"), [(7, 0), (8, 0), (9, 8), (16, 8), (17, 16), (70, 64)])
def test_a_hit_is_whole_blocks_strictly_below_the_prompt(llm, length, found):
    first = complete(llm, prompt(length))
    again = complete(llm, prompt(length))
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, found)
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


def test_the_next_turn_of_a_conversation_finds_the_completion_too(llm):
    first = complete(llm, prompt(20))
    turn = prompt(20) + first.outputs[0].token_ids + prompt(9, seed=1)
    # 20 + 12 tokens, of which the last was sampled and never computed: three blocks of eight.
    assert complete(llm, turn).num_cached_tokens == 24


def test_n_completions_compute_their_prompt_once(checkpoint):
    with engine(checkpoint, num_kv_blocks=60) as llm:
        params = SamplingParams(n=8, max_tokens=4, seed=1)
        (result,) = llm.generate({"prompt_token_ids": prompt(100)}, params)
        stats = llm.stats()
    assert len({tuple(output.token_ids) for output in result.outputs}) > 1
    assert stats.num_prefix_hits == 7 * 96
    assert stats.num_preemptions == 0  # eight copies of the prompt would need 104 blocks


def test_a_salt_keeps_callers_apart(llm):
    complete(llm, prompt(40), cache_salt="alice")
    assert complete(llm, prompt(40), cache_salt="bob").num_cached_tokens == 0
    assert complete(llm, prompt(40)).num_cached_tokens == 0
    assert complete(llm, prompt(40), cache_salt="alice").num_cached_tokens == 32


@pytest.mark.parametrize("salt", ["", "x" * 129, "tab\t", "nul\0", "\ud800"])
def test_an_odd_salt_is_refused_by_name(llm, salt):
    with pytest.raises(InvalidRequestError, match="cache_salt"):
        complete(llm, prompt(9), cache_salt=salt)


def test_after_a_reset_nothing_is_found(llm):
    complete(llm, prompt(40))
    llm.reset_prefix_cache()
    assert complete(llm, prompt(40)).num_cached_tokens == 0
    assert complete(llm, prompt(40)).num_cached_tokens == 32


def test_it_can_be_switched_off(checkpoint):
    with engine(checkpoint, enable_prefix_caching=False) as llm:
        complete(llm, prompt(40))
        assert complete(llm, prompt(40)).num_cached_tokens == 0
        assert llm.stats().num_cached_blocks == 0


def test_a_request_for_prompt_logprobs_computes_all_and_is_found_by_others(llm):
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0)
    for _ in range(2):
        (result,) = llm.generate({"prompt_token_ids": prompt(40)}, params)
        assert result.num_cached_tokens == 0
        assert len(result.prompt_logprobs) == 40
    assert complete(llm, prompt(40)).num_cached_tokens == 32


def test_the_least_recently_used_blocks_are_evicted_first(checkpoint):
    with engine(checkpoint, num_kv_blocks=17, max_model_len=120) as llm:  # two of 48 + 12
        complete(llm, prompt(48, seed=1))
        complete(llm, prompt(48, seed=2))
        complete(llm, prompt(48, seed=1))
        complete(llm, prompt(48, seed=3))
        assert llm.stats().num_evictions > 0
        assert complete(llm, prompt(48, seed=1)).num_cached_tokens == 40
        assert complete(llm, prompt(48, seed=2)).num_cached_tokens < 16


def test_an_adapter_swapped_under_its_name_is_another_one(checkpoint, tmp_path):
    model = peft_model(checkpoint, "first")
    folder = save_adapter(model, "first", tmp_path / "saved")
    served = LoRARequest("mine", 1, str(shutil.copytree(folder, tmp_path / "served")))
    with engine(checkpoint, enable_lora=True) as llm:

        def completion():
            prompts = {"prompt_token_ids": prompt(40)}
            return llm.generate(prompts, GREEDY, lora_request=served)[0]

        before, again = completion(), completion()
        assert (before.num_cached_tokens, again.num_cached_tokens) == (0, 32)
        assert complete(llm, prompt(40)).num_cached_tokens == 0  # the base model is another one too
        swap(model, folder, tmp_path / "served")
        after = completion()
    assert after.num_cached_tokens == 0
    with engine(checkpoint, enable_lora=True) as fresh:
        prompts = {"prompt_token_ids": prompt(40)}
        (expected,) = fresh.generate(prompts, GREEDY, lora_request=served)
    assert after.outputs[0].token_ids == expected.outputs[0].token_ids
    assert after.outputs[0].token_ids != before.outputs[0].token_ids


def swap(model, folder, served):
    """Write other values under the same names."""
    for parameter in model.parameters():
        parameter.data.mul_(-1.5) if parameter.dim() == 2 else None
    randomise(model, "first")
    for key, parameter in model.named_parameters():
        if ".first." in key and "lora_" in key:
            parameter.data.mul_(-2.0)
    save_adapter(model, "first", folder.parent)
    shutil.rmtree(served)
    shutil.copytree(folder, served)


def test_a_store_without_a_prefix_cache_is_refused(checkpoint):
    with pytest.raises(SettingsError, match="enable_prefix_caching"):
        engine(checkpoint, enable_prefix_caching=False, kv_store="host_memory")
