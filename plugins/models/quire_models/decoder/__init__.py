"""One decoder for most families: each layer's attention and MLP, and how they are connected.

`options` describes a decoder and reads it from config.json. Modules: decoder_model, decoder_stage,
decoder_layers, decoder_attention, mla_attention, decoder_mlp, decoder_moe, decoder_norms.
"""
