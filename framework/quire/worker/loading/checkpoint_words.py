"""What errors call the parts of a checkpoint: its config, keys of the config, and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quire.interfaces.weight_rules import WeightRules

CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class CheckpointWords:
    """Names in a checkpoint's own files.

    Attributes:
        name: The checkpoint, or its file.
        config: The file that has the config, or the part of it.
        way_out: What to do about tensors that do not fit.
        keys: Names of keys that the file has under another one.
        rules: Rules from the names of tensors in the files to those of the layout of Hugging Face.
    """

    name: str = "the checkpoint"
    config: str = CONFIG
    way_out: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    rules: WeightRules = field(default_factory=lambda: WeightRules(()))

    def key(self, name: str) -> str:
        """Return the name of a key of the config."""
        return self.keys.get(name, name)

    def tensor(self, name: str) -> str:
        """Return the name of a tensor, given that in the layout of Hugging Face."""
        return self.rules.checkpoint_name(name)

    def missing_tensor(self, name: str, of_model: WeightRules) -> str:
        """Return the name of a tensor that the checkpoint lacks.

        Args:
            name: Name of the tensor in the model.
            of_model: Rules from the layout of Hugging Face to the model's names.
        """
        published = of_model.checkpoint_name(name)
        found = self.tensor(published)
        if found != published:
            return found
        own = self.tensor(name)  # where the file has the names of quire's decoder
        return published if own == name else own
