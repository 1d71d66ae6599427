"""Options of the decoder and their reading from config.json; needs no torch.

attention_config  attention, its norms and its position-dependent factors
mla_config        multi-head latent attention
mlp_config        MLP
moe_config        mixture of experts
decoder_config    whole decoder; the model description for the engine

Readers of config.json have in common:

config_reading    sizes, attention, MLP, norms and layer types
routing_reading   router of experts
sigmoid_moe       experts as DeepSeek-V3 has them
fused_names       rules for the names of checkpoints
"""
