"""Selection of every part of an engine, from settings and plugin registries.

compose      selects all parts, in order
composition  what was selected, and why
checkpoint   the files of a model
choices      one part in each module
sizes        what they take of the memory
"""
