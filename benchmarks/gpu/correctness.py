"""Before anything is timed: each backend equals the definition of attention, and graphs equal none.

The whole comparison is `pytest tests/gpu`; this is its shortest form, so that no figure is taken of
something that is wrong.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from quire import LLM, SamplingParams
from quire.cli.bench_shapes import write_shape
from quire.config import PluginSettings
from quire.plugins import load_plugins
from quire.testing.attention_scene import AttentionScene, SceneSizes

TOLERANCE = {"bfloat16": 3e-2, "float32": 2e-5}
LENGTHS = (3, 600, 17, 90)


def check_backend(name: str, device: torch.device, dtype: str) -> dict[str, Any]:
    """Return the largest error of a prompt step and of a decode step, and whether it is allowed."""
    backend_class = load_plugins(PluginSettings()).registries.attention_backends.get(name)
    sizes = SceneSizes(
        num_heads=8, num_kv_heads=2, head_dim=128, dtype=dtype, kv_dtype=dtype, device=device.type
    )
    scene = AttentionScene(backend_class, sizes)
    numbers = [scene.add(length + 1) for length in LENGTHS]
    pairs = scene.step(list(zip(numbers[1:], LENGTHS[1:], strict=True))[:1])
    pairs += scene.step([(numbers[0], 3), (numbers[2], 17), (numbers[3], 90)])
    pairs += scene.step([(number, 1) for number in numbers])
    error = max((answer.double() - truth.double()).abs().max().item() for answer, truth in pairs)
    return {"backend": name, "dtype": dtype, "error": error, "is_right": error <= TOLERANCE[dtype]}


def check_engine(folder: Path, shape: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return whether captured steps draw the tokens that the same kernels draw one by one."""
    write_shape(folder, shape)
    prompts = [[300 + row * 7 + i for i in range(5 + 3 * row)] for row in range(3)]
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    answers = []
    for enforce_eager in (True, False):
        llm = LLM(
            str(folder), load_format="dummy", enforce_eager=enforce_eager,
            max_num_seqs=4, max_model_len=64, **options,
        )  # fmt: skip
        try:
            outputs = llm.generate(prompts, params)
        finally:
            llm.close()
        answers.append([output.outputs[0].token_ids for output in outputs])
    return {"shape": shape, "graphs_equal_eager": answers[0] == answers[1]}
