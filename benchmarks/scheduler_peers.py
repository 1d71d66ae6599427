"""One of the two engines of `scheduler_against_vllm.py`, without a model, in a process of its own.

    python benchmarks/scheduler_peers.py quire|vllm '{"num_running": 128, ...}'

It lets the requests begin, and then runs a round of decode steps whenever its parent sends a line;
the reply is the CPU seconds of one step. The results of the workers are prepared in advance.
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BLOCK_SIZE = 16
TOKEN_ID = 7
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 50_000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 131_072,
    "torch_dtype": "float32",
}

Step = Callable[[], object]


def main() -> None:
    """Start, and run one round for each line of the parent."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is no reply
    scene = json.loads(sys.argv[2])
    os.sched_setaffinity(0, {scene["core"]})
    step = ENGINES[sys.argv[1]](scene)
    gc.collect()
    gc.freeze()  # as an engine does before it serves: objects of its start are not collected again
    print("ready", file=replies, flush=True)
    for _ in sys.stdin:
        print(json.dumps(cost_of_step(step)), file=replies, flush=True)


def cost_of_step(step: Step) -> float:
    """Return the CPU seconds of one step; in a round every request needs one new block."""
    started = time.process_time()
    for _ in range(BLOCK_SIZE):
        step()
    return (time.process_time() - started) / BLOCK_SIZE


def quire_step(scene: dict[str, Any]) -> Step:
    """Return quire's whole step: schedule, the calls of the workers, update, statistics."""
    from quire.cli.bench.null_engine import EngineParts, Workload, make_core, start_decoding

    workload = Workload(
        scene["num_running"],
        scene["context"],
        num_steps=scene["num_steps"],
    )
    core, _ = make_core(EngineParts.load(), workload)
    start_decoding(core, workload)
    return core.step


def vllm_step(scene: dict[str, Any]) -> Step:
    """Return vLLM's `schedule` and `update_from_output`, and nothing else of its engine core."""
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler = vllm_scheduler(scene)
    names = [f"r{index}" for index in range(scene["num_running"])]
    for index, name in enumerate(names):
        scheduler.add_request(vllm_request(name, index, scene))
    sampled = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[TOKEN_ID] for _ in names],
    )

    def step() -> None:
        scheduler.update_from_output(scheduler.schedule(), sampled)

    step()  # all prompts, in one step
    if len(scheduler.running) != len(names):
        raise RuntimeError(f"{len(scheduler.running)} of {len(names)} requests run")
    return step


def vllm_scheduler(scene: dict[str, Any]) -> Any:
    """Return vLLM's scheduler: defaults, prefix caching, one full-attention group."""
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    num_running, context = scene["num_running"], scene["context"]
    length = MODEL["max_position_embeddings"]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        model = ModelConfig(
            model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=length
        )
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_num_seqs=num_running,
                max_num_batched_tokens=max(length, num_running * context),
                max_model_len=length,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        )
    num_blocks = num_running * (-(-(context + scene["num_steps"]) // BLOCK_SIZE) + 1) + 1
    config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=16, dtype=torch.float32
    )
    cache = KVCacheConfig(num_blocks, [], [KVCacheGroupSpec(["layers.0"], spec)])
    return Scheduler(config, cache, StructuredOutputManager(config), BLOCK_SIZE, log_stats=False)


def vllm_request(name: str, index: int, scene: dict[str, Any]) -> Any:
    """Return the same request that quire gets: same prompt, greedy, no end before `num_steps`."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    params = SamplingParams(max_tokens=scene["num_steps"], temperature=0, ignore_eos=True)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return Request(name, prompt(index, scene["context"] - 1), params, None, block_hasher=hasher)


def prompt(first: int, num_tokens: int) -> list[int]:
    """Return a prompt that no other request has."""
    size = int(MODEL["vocab_size"])
    token_ids = [first % size, first // size]
    token_ids += [(first * 7919 + position * 31) % size for position in range(num_tokens)]
    return token_ids[:num_tokens]


ENGINES: dict[str, Callable[[dict[str, Any]], Step]] = {"quire": quire_step, "vllm": vllm_step}


if __name__ == "__main__":
    main()
