"""Grammars of requests, compiled and matched in separate processes."""
