"""One seeded random checkpoint for all engines, of bfloat16 weights that each can keep exactly.

    python checkpoint_files.py FOLDER SHAPE

The weights are those of quire's test checkpoints, rounded to bfloat16: every parameter is random,
and greedy completions vary.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_process import EngineFailedError, clean_environment, without_paths
from family_shapes import FAMILY_SHAPES, write_family_shape

from quire.cli.bench.model_shapes import SHAPES

HERE = Path(__file__).parent
TINY = "tiny"
TINY_SHAPE: dict[str, Any] = SHAPES["5m"] | {"vocab_size": 512, "num_hidden_layers": 2}


def sizes(shape: str) -> dict[str, Any]:
    """Return the sizes of a shape, as in a config.json."""
    return TINY_SHAPE if shape == TINY else (SHAPES | FAMILY_SHAPES)[shape]


def num_params(folder: Path) -> int:
    """Return the number of parameters of a checkpoint, each of two bytes."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) // 2


def make_checkpoint(folder: Path, shape: str) -> Path:
    """Write the checkpoint of a shape into a folder of its own, unless it is there; return that."""
    target, partial = folder / shape, folder / f"{shape}.partial"
    if not target.exists():
        shutil.rmtree(partial, ignore_errors=True)
        _run([sys.executable, __file__, str(partial), shape])
        partial.rename(target)
    return target


def make_gguf(checkpoint: Path, python: str, kinds: Sequence[str]) -> None:
    """Write the same weights in llama.cpp's format, with its environment."""
    _run([python, str(HERE / "peers" / "write_gguf.py"), str(checkpoint), *kinds])


def make_vllm(checkpoint: Path, python: str, kinds: Sequence[str]) -> None:
    """Write a checkpoint of eight-bit integers into a folder in the checkpoint's.

    Args:
        checkpoint: Folder of the checkpoint.
        python: An interpreter that has torch.
        kinds: "int8", or nothing.
    """
    for kind in kinds:
        target, partial = (checkpoint / f"vllm-{kind}{end}" for end in ("", ".partial"))
        if not target.exists():
            shutil.rmtree(partial, ignore_errors=True)
            script = str(HERE / "peers" / f"write_{kind}.py")
            _run([python, script, str(checkpoint), str(partial)])
            partial.rename(target)


def make_openvino(checkpoint: Path, python: str, kinds: Sequence[str]) -> None:
    """Export the same weights as OpenVINO's users do, into folders in the checkpoint's.

    Args:
        checkpoint: Folder of the checkpoint.
        python: An interpreter that has optimum-intel.
        kinds: Formats of weights, as `optimum-cli` names them.
    """
    argv = [python, "-m", "optimum.commands.optimum_cli", "export", "openvino"]
    argv += ["--model", str(checkpoint), "--task", "text-generation-with-past"]
    for kind in kinds:
        target, partial = (checkpoint / f"openvino-{kind}{end}" for end in ("", ".partial"))
        if not target.exists():
            shutil.rmtree(partial, ignore_errors=True)
            _run([*argv, "--weight-format", kind, str(partial)])
            partial.rename(target)


def _run(argv: Sequence[str]) -> None:
    """Run to the end, quietly unless it fails.

    Raises:
        EngineFailedError: It failed; the message has the end of its output.
    """
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, env=clean_environment()
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()
        print(output, file=sys.stderr, flush=True)
        what = f"{Path(argv[1]).name} ended with {done.returncode}: {output[-300:]}"
        raise EngineFailedError(without_paths(what))


def write(folder: Path, shape: str) -> None:
    """Write the checkpoint; it loads torch."""
    import torch
    from safetensors.torch import save_file

    from quire.testing.checkpoints import write_checkpoint

    config = sizes(shape) | {"tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    written = write_checkpoint(folder, "Qwen3ForCausalLM", seed=0, **config)
    rounded = {name: tensor.to(torch.bfloat16) for name, tensor in written.weights.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    stored = json.loads((folder / "config.json").read_text())
    if stored["torch_dtype"] != "bfloat16":
        raise RuntimeError("the config does not say what the weights are")


if __name__ == "__main__":
    path, named = Path(sys.argv[1]), sys.argv[2]
    write_family_shape(path, named) if named in FAMILY_SHAPES else write(path, named)
