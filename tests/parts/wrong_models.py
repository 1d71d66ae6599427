"""Decoders that are wrong on purpose, as a distribution that offers them by their names."""

from dataclasses import replace

from quire import hookimpl
from quire.interfaces.model import ModelCapabilities
from quire.layers import TensorParallelGroup
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.decoder.options.decoder_config import describe_decoder
from quire_models.family_table import read_decoder_config

FAMILY = "Gemma2ForCausalLM"


def without_scale(decoder):
    return replace(decoder, embedding_scale=1.0)


def without_windows(decoder):
    layers = [
        replace(layer, attention=replace(layer.attention, window=None)) for layer in decoder.layers
    ]
    return replace(decoder, layers=tuple(layers))


CHANGES = {"UnscaledForCausalLM": without_scale, "UnwindowedForCausalLM": without_windows}


def read_wrong(config):
    (architecture,) = config["architectures"]
    change = CHANGES.get(architecture, lambda decoder: decoder)
    return change(read_decoder_config(FAMILY, config))


def describe_wrong(config):
    (architecture,) = config["architectures"]
    return describe_decoder(architecture, config, read_wrong(config))


def describe_unchecked(config):
    """Read a count, and take whatever it is."""
    return config["hidden_size"]


class RightForCausalLM(DecoderForCausalLM):
    """As the family is."""

    @classmethod
    def read_config(cls, description):
        return read_wrong(description.config)


class WithoutSums(TensorParallelGroup):
    """Group whose ranks keep their parts of a sum."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, group.rank, group.size

    def all_reduce(self, x):
        return x

    def all_gather(self, x, dim=-1):
        return self.group.all_gather(x, dim)


class UnsummedForCausalLM(RightForCausalLM):
    """Ranks do not sum their parts."""

    def __init__(self, description, context):
        super().__init__(description, replace(context, tp=WithoutSums(context.tp)))


class UnadaptedForCausalLM(RightForCausalLM):
    """Adapters are left out."""

    def forward(self, input_ids, positions, batch, *others, **named):
        return super().forward(
            input_ids, positions, replace(batch, adapters=None), *others, **named
        )


class UnquantizedForCausalLM(RightForCausalLM):
    """Layers are built without their quantization method."""

    def __init__(self, description, context):
        super().__init__(description, replace(context, quantization=None))


CLASSES = {
    "RightForCausalLM": RightForCausalLM,
    "UnsummedForCausalLM": UnsummedForCausalLM,
    "UnadaptedForCausalLM": UnadaptedForCausalLM,
    "UnquantizedForCausalLM": UnquantizedForCausalLM,
    **dict.fromkeys(CHANGES, RightForCausalLM),
}


@hookimpl
def register_models(registry):
    for name, model_class in CLASSES.items():
        registry.add(
            name,
            f"wrong_models:{model_class.__name__}",
            capabilities=ModelCapabilities(describe="wrong_models:describe_wrong"),
        )
