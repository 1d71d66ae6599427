"""Steps that make logits more or less even, and keep their order."""
