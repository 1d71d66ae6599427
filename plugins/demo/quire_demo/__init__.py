"""The demo model, part of the package so that it needs no download."""
