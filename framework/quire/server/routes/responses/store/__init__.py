"""Stored responses: by their keys, with limits of number, bytes and age."""
