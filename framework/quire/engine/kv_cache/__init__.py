"""Paged KV blocks: the memory plan, the pool, block tables and prefix lookup."""
