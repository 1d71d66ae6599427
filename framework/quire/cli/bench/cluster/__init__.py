"""Simulation of many replicas in virtual time: the real engine and router around stub workers."""
