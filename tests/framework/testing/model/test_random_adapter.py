"""The adapter of the kit changes every linear layer, and its merged weights are those."""

import torch

from quire.testing.model.random_adapter import RandomAdapter


def test_every_linear_layer_is_changed_by_what_is_merged(scene, checkpoint):
    adapter = RandomAdapter(scene.empty_model(), checkpoint.weights)
    parts = ("q", "k", "v", "o", "gate", "up", "down")
    assert {name.split(".")[-1] for name in adapter.modules} == {f"{part}_proj" for part in parts}
    for name, module in adapter.modules.items():
        change = adapter.merged[f"{name}.weight"] - checkpoint.weights[f"{name}.weight"]
        torch.testing.assert_close(change, module.scale * module.b @ module.a, atol=1e-6, rtol=1e-5)
        assert change.std() > 0.1 * checkpoint.weights[f"{name}.weight"].std()
