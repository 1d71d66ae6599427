"""Arrays of unique items: the text is read along, and tokens that repeat an item are masked."""
