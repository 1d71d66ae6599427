"""Steps that penalize, raise or forbid tokens by what they are or by what is known already."""
