"""Everything the demo model knows is generated here, from a seed."""
