"""Grammars of requests, compiled and matched in processes of their own."""
