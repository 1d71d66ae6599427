"""Sampler steps that ship with quire."""
