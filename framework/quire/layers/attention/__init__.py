"""Attention layers, and the rotary embedding of their queries and keys."""
