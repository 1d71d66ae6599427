"""The scheduler: chooses the requests of each step and their numbers of tokens."""
