"""The engine: decides what each step computes. Knows no torch and no HTTP."""
