"""A family outside of the table, as the page for model authors shows it."""

import pytest
import torch
from model_parts import CONTEXT, random_tokens

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.dense_attention import bind_dense_attention, difference, logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_models.decoder.decoder_model import DecoderForCausalLM
from quire_models.decoder.options.config_reading import (
    read_attention,
    read_decoder,
    read_mlp,
    read_rms_norm,
    same_layers,
)
from quire_models.decoder.options.decoder_config import describe_decoder
from quire_models.family_table import read_decoder_config


def read_acme(config):
    values = ConfigValues(config, "AcmeForCausalLM")
    layers = same_layers(values, read_attention(values), read_mlp(values))
    return read_decoder(values, layers, read_rms_norm(values), logit_scale=0.5)


class AcmeForCausalLM(DecoderForCausalLM):
    @classmethod
    def read_config(cls, description):
        return read_acme(description.config)


def test_a_family_is_a_reader_and_a_class_of_one_method(tmp_path):
    written = write_checkpoint(tmp_path, "LlamaForCausalLM")
    description = describe_decoder("AcmeForCausalLM", written.config, read_acme(written.config))
    acme = AcmeForCausalLM(description, CONTEXT)
    llama = DecoderForCausalLM(
        describe_decoder("LlamaForCausalLM", written.config, read_acme(written.config)), CONTEXT
    )
    for model in (acme, llama):
        bind_dense_attention(model)
        load_weights(model, tmp_path)
    token_ids = random_tokens(20)
    halved = logits_of(llama, token_ids) / 2
    assert difference(logits_of(acme, token_ids), halved) < 1e-6
    assert torch.isfinite(halved).all()


def test_an_architecture_outside_of_the_table_needs_a_reader():
    with pytest.raises(UnsupportedModelError, match="AcmeForCausalLM is not in the table"):
        read_decoder_config("AcmeForCausalLM", {})
