"""JSON schemas in a normal form, and patterns of ECMA-262."""
