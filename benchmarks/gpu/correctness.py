"""Before anything is timed: each backend equals the definition of attention, and graphs equal none.

The whole comparison is `make test-gpu`; this is its shortest form, so that no figure is taken of
something that is wrong.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from quire import LLM, SamplingParams
from quire.cli.bench.model_shapes import write_shape
from quire.config import PluginSettings
from quire.plugins.loading import load_plugins
from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes

TOLERANCE = {"bfloat16": 3e-2, "float32": 2e-5}
LENGTHS = (3, 600, 17, 90)
PROMPTS = {False: (20, 1900, 700, 1), True: (5, 40, 17, 1)}  # tokens; is it a dry run
MAX_MODEL_LEN = 2048
NUM_TOKENS = {False: 48, True: 6}


def check_backend(name: str, device: torch.device, dtype: str) -> dict[str, Any]:
    """Return the largest error of a prompt step and of a decode step, and whether it is allowed."""
    found: dict[str, Any] = {"backend": name, "dtype": dtype}
    try:
        error = _largest_error(name, device, dtype)
    except Exception as failure:  # noqa: BLE001 (the others are still worth a look)
        return found | {"is_right": False, "failed": f"{type(failure).__name__}: {failure}"[:400]}
    return found | {"error": error, "is_right": error <= TOLERANCE[dtype]}


def check_engine(
    folder: Path, shape: str, dtype: str, options: dict[str, Any], is_dry: bool
) -> dict[str, Any]:
    """Return how many tokens captured steps sample differently from separate kernels.

    Contexts are uneven, so that attention is split and merged.
    """
    write_shape(folder, shape)
    rng = random.Random(4)
    prompts = [rng.choices(range(300, 8000), k=length) for length in PROMPTS[is_dry]]
    params = SamplingParams(max_tokens=NUM_TOKENS[is_dry], temperature=0, ignore_eos=True)
    completions = []
    for enforce_eager in (True, False):
        llm = LLM(
            str(folder),
            load_format="dummy",
            dtype=dtype,
            enforce_eager=enforce_eager,
            max_num_seqs=4,
            max_model_len=MAX_MODEL_LEN,
            kv_cache_memory_bytes=2**28,
            **options,
        )
        try:
            outputs = llm.generate(prompts, params)
            num_graphs = llm.composition.cuda_graphs.value
        finally:
            llm.close()
        completions.append([output.outputs[0].token_ids for output in outputs])
    pairs = [pair for both in zip(*completions, strict=True) for pair in zip(*both, strict=True)]
    return {
        "dtype": dtype,
        "num_tokens": len(pairs),
        "num_different": sum(one != other for one, other in pairs),
        "max_graph_requests": num_graphs,
    }


def _largest_error(name: str, device: torch.device, dtype: str) -> float:
    backend_class = load_plugins(PluginSettings()).registries.attention_backends.get(name)
    sizes = SceneSizes(
        num_heads=8, num_kv_heads=2, head_dim=128, dtype=dtype, kv_dtype=dtype, device=device.type
    )
    scene = AttentionScene(backend_class, sizes)
    numbers = [scene.add(length + 1) for length in LENGTHS]
    pairs = scene.step([(numbers[1], 600)])
    pairs += scene.step([(numbers[0], 3), (numbers[2], 17), (numbers[3], 90)])
    pairs += scene.step([(number, 1) for number in numbers])
    return max((output.double() - truth.double()).abs().max().item() for output, truth in pairs)
