"""Collectives between the ranks of one node, through shared memory, in C++."""
