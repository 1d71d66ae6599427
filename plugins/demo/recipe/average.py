"""The shipped weights are the mean of the last two stages', which is better than either.

python -m recipe.average STAGE_3_FOLDER STAGE_4_FOLDER
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from recipe.template import CHECKPOINT

_WEIGHTS = "model.safetensors"


def average(folders: Sequence[Path], into: Path) -> None:
    """Write the mean of the weights of several folders."""
    weights = [load_file(folder / _WEIGHTS) for folder in folders]
    mean = {name: torch.stack([each[name] for each in weights]).mean(0) for name in weights[0]}
    save_file(mean, into / _WEIGHTS, {"format": "pt"})
    (into / _WEIGHTS).chmod(0o644)


def main() -> None:
    """Read the command line and write the mean into the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    average(parser.parse_args().folders, CHECKPOINT)


if __name__ == "__main__":
    main()
