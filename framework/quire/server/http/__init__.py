"""Connections, the guard middleware, and limits shared by all requests."""
