"""Checks of a request, before the engine gets it."""
