"""The backend on llguidance, and the grammars that it is given."""
