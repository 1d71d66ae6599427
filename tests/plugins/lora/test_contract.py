"""The kit of LoRA sources, on peft's layout."""

import json

from safetensors.torch import save_file

from quire.testing.lora import LoRASourceContract
from quire_lora.peft_source import PeftSource


class TestPeftSource(LoRASourceContract):
    source_class = PeftSource
    ranks = (4, 2)

    def write(self, root, name, modules, base_model):
        folder = root / name
        folder.mkdir(parents=True)
        tensors = {
            f"base_model.model.{module}.lora_{side}.weight": matrix.contiguous()
            for module, pair in modules.items()
            for side, matrix in (("A", pair.a), ("B", pair.b))
        }
        save_file(tensors, folder / "adapter_model.safetensors")
        ranks = {module: pair.a.shape[0] for module, pair in modules.items()}
        config = {
            "peft_type": "LORA",
            "r": 4,
            "lora_alpha": 8,
            "rank_pattern": ranks,
            "alpha_pattern": {
                module: pair.scale * ranks[module] for module, pair in modules.items()
            },
            "base_model_name_or_path": base_model,
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return str(folder)
