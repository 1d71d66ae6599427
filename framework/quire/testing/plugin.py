"""The pytest plugin of quire: fixtures for the conformance kits."""
