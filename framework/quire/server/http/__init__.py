"""Connections, the guard in front of all routes, and limits that all requests share."""
