"""The engine: plans what each step computes. Imports neither torch nor HTTP code."""
