"""The backend on outlines_core, and the translation of constraints to its regular expressions."""
