"""Find the installed plugins, load each on its own, and gather what they offer."""
