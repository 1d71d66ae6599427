"""Layout and quantization of pages, the keys that a query attends, and split plans."""
