"""Memory of a device: what is free, and what a step of the largest size takes."""
