"""A watermark, and its detector."""
