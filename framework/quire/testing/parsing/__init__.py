"""Parts of the kits of parsers: splits, token streams, hostile texts, and counted work."""
