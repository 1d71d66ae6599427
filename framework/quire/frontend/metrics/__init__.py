"""Measurements of requests and steps, accumulated at the frontend, independent of any exporter."""
