"""Device memory: free memory, and the memory that a step of the largest size takes."""
