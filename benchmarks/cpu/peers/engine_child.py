"""One engine in a process of its own, behind the same few JSON lines whichever engine it is.

    PYTHON engine_child.py quire|vllm|openvino|transformers|llama.cpp

A line in is `{"do": "load", "folder": ..., "options": {...}}` or `{"do": "run", "prompts":
[[ids]], "output_len": n, "repeats": n}`; a line out is the result, or `{"error": ...}`. It needs
nothing but the engine that is asked for, so that it runs in any environment that has one. Every run
is greedy, goes on past the end-of-text token, and finds no cached prefix.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Generate = Callable[[list[list[int]], int], list[list[int]]]  # prompts, output_len -> completions


def main() -> None:
    """Write a result for each line of the parent until there are no more."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is no result
    generate: Generate | None = None
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if message["do"] == "load":
                generate, result = load(message)
            elif generate is None:
                raise RuntimeError("no model was loaded")
            else:
                result = run(generate, message)
        except Exception as error:  # noqa: BLE001 - the parent reports it and goes on with the others
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=results, flush=True)


def load(message: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
    """Build the engine; returns the seconds of its imports and of its constructor with it."""
    importer = ENGINES[sys.argv[1]]
    started = time.perf_counter()
    build = importer()
    imported = time.perf_counter()
    generate, about = build(Path(message["folder"]), message["options"])
    seconds = {
        "import_s": imported - started,
        "construct_s": time.perf_counter() - imported,
    }
    return generate, seconds | about


def run(generate: Generate, message: dict[str, Any]) -> dict[str, Any]:
    """Generate; returns the seconds of one repetition, and the tokens of the last."""
    started = time.perf_counter()
    for _ in range(message["repeats"]):
        token_ids = generate(message["prompts"], message["output_len"])
    seconds = (time.perf_counter() - started) / message["repeats"]
    lengths = {len(each) for each in token_ids}
    if lengths != {message["output_len"]}:
        raise RuntimeError(f"completions of {lengths} tokens instead of {message['output_len']}")
    return {"seconds": seconds, "token_ids": token_ids}


def quire() -> Callable[..., tuple[Generate, dict[str, Any]]]:
    """Import quire."""
    from quire import LLM, SamplingParams
    from quire.compose.sizes.weight_bytes import weight_bytes
    from quire.machine import instruction_sets

    def build(folder: Path, options: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
        llm = LLM(str(folder), enable_prefix_caching=False, **options)

        def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
            params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
            return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

        chosen = llm.composition
        parts = {choice.role: choice.name for choice in chosen.choices}
        values = {"kernels": chosen.kernels.value, "dtype": chosen.dtype.value}
        parts |= values | {"kv_dtype": chosen.kv_dtype}
        found = instruction_sets.here()
        name = found if isinstance(found, str) else found.name
        about = {"instruction_set": name, "weight_bytes": weight_bytes(chosen, tp_size=1)}
        return generate, about | {"parts": parts}

    return build


def vllm() -> Callable[..., tuple[Generate, dict[str, Any]]]:
    """Import vLLM."""
    from vllm import LLM, SamplingParams

    def build(folder: Path, options: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
        options = dict(options)
        narrow = options.pop("weights", None)
        llm = LLM(
            model=str(folder if narrow is None else folder / f"vllm-{narrow}"),
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            **options,
        )

        def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
            params = SamplingParams(
                temperature=0, max_tokens=output_len, ignore_eos=True, detokenize=False
            )
            wanted = [{"prompt_token_ids": prompt} for prompt in prompts]
            found = llm.generate(wanted, params, use_tqdm=False)
            return [list(output.outputs[0].token_ids) for output in found]

        return generate, {}

    return build


def transformers() -> Callable[..., tuple[Generate, dict[str, Any]]]:
    """Import transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    def build(folder: Path, options: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
        torch.set_num_threads(options["threads"])
        named = options["dtype"]
        dtype = named if named == "auto" else getattr(torch, named)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()  # SDPA, if it can
        cache = options.get("cache_implementation")
        if cache == "static":
            model.forward = torch.compile(model.forward)

        @torch.inference_mode()
        def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
            token_ids = torch.tensor(prompts)
            found = model.generate(
                token_ids,
                attention_mask=torch.ones_like(token_ids),
                max_new_tokens=output_len,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                cache_implementation=cache,
            )
            completions: list[list[int]] = found[:, token_ids.shape[1] :].tolist()
            return completions

        return generate, {"instruction_set": torch.backends.cpu.get_cpu_capability()}

    return build


def openvino() -> Callable[..., tuple[Generate, dict[str, Any]]]:
    """Import OpenVINO GenAI."""
    import numpy as np
    import openvino
    import openvino_genai

    def build(folder: Path, options: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
        path = folder / f"openvino-{options['weights']}"
        properties = dict(options["properties"])
        if "scheduler" in options:
            scheduler = openvino_genai.SchedulerConfig()  # it caches no prefixes
            for name, value in options["scheduler"].items():
                setattr(scheduler, name, value)
            properties["scheduler_config"] = scheduler
        pipeline = openvino_genai.LLMPipeline(path, "CPU", **properties)

        def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
            token_ids = np.array(prompts, dtype=np.int64)
            inputs = openvino_genai.TokenizedInputs(
                openvino.Tensor(token_ids), openvino.Tensor(np.ones_like(token_ids))
            )
            wanted = openvino_genai.GenerationConfig(
                max_new_tokens=output_len, do_sample=False, ignore_eos=True
            )
            return [list(completion) for completion in pipeline.generate(inputs, wanted).tokens]

        found = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        about = {
            "instruction_set": "avx512" if "BF16" in found else "avx2",
            "weight_bytes": (path / "openvino_model.bin").stat().st_size,
        }
        return generate, about

    return build


def llama_cpp() -> Callable[..., tuple[Generate, dict[str, Any]]]:
    """Import llama-cpp-python."""
    import llama_cpp
    import numpy as np

    def build(folder: Path, options: dict[str, Any]) -> tuple[Generate, dict[str, Any]]:
        options = dict(options)
        path = folder / f"{options.pop('weights')}.gguf"
        llm = llama_cpp.Llama(model_path=str(path), verbose=False, **options)

        def one(prompt: list[int], output_len: int) -> list[int]:
            llm.reset()
            llm._ctx.kv_cache_clear()  # `reset` alone leaves the old tokens' KV to be written over
            llm.eval(prompt)
            completion = [most_likely()]
            while len(completion) < output_len:
                llm.eval(completion[-1:])
                completion.append(most_likely())
            return completion

        def most_likely() -> int:
            logits = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
            return int(np.ctypeslib.as_array(logits, shape=(llm.n_vocab(),)).argmax())

        def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
            return [one(prompt, output_len) for prompt in prompts]

        return generate, {
            "instruction_set": llama_cpp.llama_print_system_info().decode(),
            "weight_bytes": path.stat().st_size,
        }

    return build


ENGINES: dict[str, Callable[[], Callable[..., tuple[Generate, dict[str, Any]]]]] = {
    "quire": quire,
    "vllm": vllm,
    "openvino": openvino,
    "transformers": transformers,
    "llama.cpp": llama_cpp,
}


if __name__ == "__main__":
    main()
