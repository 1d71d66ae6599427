"""Interfaces that plugins implement, one module per kind. Torch is used in annotations only."""
