"""Adapters of fused modules change the model as peft's do the fused layer."""

import warnings

import pytest
import torch
from model_parts import CONTEXT
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from quire.errors import AdapterError
from quire.interfaces.lora import Adapter, AdapterModule
from quire.interfaces.model import Model
from quire.interfaces.weight_rules import WeightRule
from quire.layers import QKVParallelLinear, SingleDevice
from quire.messages import AdapterRef
from quire.worker.loading.weight_loading import load_weights
from quire.worker.lora.adapter_manager import AdapterManager
from quire_lora.peft_source import PeftSource

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 6, 4, 2, 3
ROWS = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
NAMES = tuple(f"h.{{layer}}.attn.{side}_proj" for side in "qkv")


class FusedModel(nn.Module):
    """A checkpoint's own model: one projection of queries, keys and values."""

    def __init__(self, transposed: bool) -> None:
        super().__init__()
        attn = nn.Module()
        attn.c_attn = Conv1D(sum(ROWS), HIDDEN) if transposed else nn.Linear(HIDDEN, sum(ROWS))
        layer = nn.Module()
        layer.attn = attn
        self.h = nn.ModuleList([layer])
        self.config = {"model_type": "none"}
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.h[0].attn.c_attn(x)
        return out


class SplitModel(nn.Module, Model):
    packed_modules = {"qkv_proj": ("q_proj", "k_proj", "v_proj")}  # noqa: RUF012

    def __init__(self, rule: WeightRule, context=CONTEXT) -> None:
        super().__init__()
        self.weight_rules = (rule,)
        attn = nn.Module()
        attn.qkv_proj = QKVParallelLinear(
            "h.0.attn.qkv_proj", HIDDEN, HEADS, KV_HEADS, HEAD_DIM, bias=True, context=context
        )
        layer = nn.Module()
        layer.attn = attn
        self.h = nn.ModuleList([layer])

    def forward(self, *args):
        raise NotImplementedError

    def compute_logits(self, hidden_states):
        raise NotImplementedError


def order(groups: int) -> Tensor:
    """Rows of the fused layer in the order of the split one."""
    grouped = torch.arange(sum(ROWS)).view(groups, -1)
    return torch.cat([p.flatten() for p in grouped.split([rows // groups for rows in ROWS], 1)])


@pytest.fixture
def peft_folder(tmp_path):
    def save(model: FusedModel, **options):
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=2, lora_alpha=6, target_modules=["c_attn"], **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft calls what transformers deprecates
            adapted = get_peft_model(model, config).eval()
            for name, parameter in adapted.named_parameters():
                if "lora_" in name:
                    nn.init.normal_(parameter)
            adapted.save_pretrained(tmp_path / "adapter")
        return adapted, tmp_path / "adapter"

    return save


@pytest.mark.parametrize("groups", [1, KV_HEADS])
@pytest.mark.parametrize("transposed", [False, True])
def test_lora_on_a_fused_layer_equals_peft(tmp_path, peft_folder, groups, transposed):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    base = FusedModel(transposed)
    save_file(base.state_dict(), tmp_path / "model.safetensors")
    peft, folder = peft_folder(base, fan_in_fan_out=transposed)
    model = SplitModel(WeightRule("h.{layer}.attn.c_attn", NAMES, groups, transposed))
    load_weights(model, tmp_path)
    manager = AdapterManager(model, PeftSource(), 1, 4)
    index = manager.load(AdapterRef("a", str(folder)))
    x = torch.randn(5, HIDDEN)
    with torch.inference_mode():
        expected = peft(x)[:, order(groups)]
        plain = model.h[0].attn.qkv_proj(x)
        found = model.h[0].attn.qkv_proj(x, manager.batch([index], [5]))
    torch.testing.assert_close(found, expected)
    assert (found - plain).abs().max() > 0.1


class Given(PeftSource):
    """One adapter, whatever the folder."""

    def __init__(self, **modules: AdapterModule) -> None:
        self.adapter = Adapter({k.replace("_0_", ".0."): v for k, v in modules.items()}, None, "x")

    def read(self, folder, max_rank):
        return self.adapter


def refused(module: dict[str, AdapterModule], rule: WeightRule) -> str:
    source = Given()
    source.adapter = Adapter(module, None, "x")
    manager = AdapterManager(SplitModel(rule), source, 1, 4)
    with pytest.raises(AdapterError) as caught:
        manager.load(AdapterRef("wrong", "wrong", content_hash="x"))
    return str(caught.value)


def matrices(rows: int, columns: int = HIDDEN) -> AdapterModule:
    return AdapterModule(torch.ones(2, columns), torch.ones(rows, 2), 1.0)


RULE = WeightRule("h.{layer}.attn.c_attn", NAMES)


def test_a_fused_adapter_of_a_wrong_shape_is_named_by_its_module():
    text = refused({"h.0.attn.c_attn": matrices(sum(ROWS) + 1)}, RULE)
    assert "h.0.attn.c_attn" in text
    assert f"[{sum(ROWS) + 1}, 2]" in text
    assert f"[{sum(ROWS)}, 2]" in text


def test_an_adapter_that_changes_a_matrix_twice_is_refused():
    both = {"h.0.attn.c_attn": matrices(sum(ROWS)), "h.0.attn.k_proj": matrices(ROWS[1])}
    text = refused(both, RULE)
    assert "h.0.attn.k_proj twice, as h.0.attn.c_attn and as h.0.attn.k_proj" in text


@pytest.mark.parametrize("module", ["h.1.attn.c_attn", "h.0.attn.c_proj", "h.0.attn.qkv_proj"])
def test_a_module_that_no_rule_and_no_layer_has_is_refused(module):
    assert f"not linear layers of the model: {module};" in refused({module: matrices(24)}, RULE)


def test_adapters_of_stacked_experts_are_refused():
    parts = tuple(f"h.{{expert}}.attn.{side}_proj" for side in "qkv")
    text = refused({"experts.c": matrices(sum(ROWS))}, WeightRule("experts.c", parts))
    assert "adapters cannot change in this model: experts.c;" in text


class Shard(SingleDevice):
    """One of two devices, which never exchange anything."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


def test_a_rank_has_its_rows_of_a_fused_adapter():
    from dataclasses import replace

    torch.manual_seed(1)
    adapter = AdapterModule(torch.randn(2, HIDDEN), torch.randn(sum(ROWS), 2), 0.5)
    source = Given()
    source.adapter = Adapter({"h.0.attn.c_attn": adapter}, None, "x")
    x = torch.randn(3, HIDDEN)
    deltas = []
    for rank in range(2):
        model = SplitModel(RULE, replace(CONTEXT, tp=Shard(rank)))
        for parameter in model.parameters():
            parameter.fill_(0.0)
        manager = AdapterManager(model, source, 1, 4)
        index = manager.load(AdapterRef("a", "a", content_hash="x"))
        deltas.append(model.h[0].attn.qkv_proj(x, manager.batch([index], [3])))
    whole = (x @ adapter.a.T) @ adapter.b.T * adapter.scale
    for side, rows in enumerate(whole.split(list(ROWS), 1)):
        halves = [delta.split([size // 2 for size in ROWS], 1)[side] for delta in deltas]
        torch.testing.assert_close(torch.cat(halves, 1), rows)
