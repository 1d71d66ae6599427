"""Readers of config.json, by family: the options of the decoder, and the checkpoint's names."""
