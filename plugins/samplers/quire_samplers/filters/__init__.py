"""Steps that leave the most suitable tokens, and mask the others."""
