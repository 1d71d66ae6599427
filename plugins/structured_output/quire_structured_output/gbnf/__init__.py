"""Context-free grammars in GBNF, as grammars of llguidance."""
