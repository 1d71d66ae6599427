"""The HTTP routes, and the builders of the choices in their responses."""
