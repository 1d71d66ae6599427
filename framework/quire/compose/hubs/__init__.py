"""Hubs that models are downloaded from."""
