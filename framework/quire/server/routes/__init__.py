"""The HTTP routes, one file a route, and the choices that they send."""
