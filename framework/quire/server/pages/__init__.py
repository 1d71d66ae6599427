"""The pages for a browser: /ui and /docs, each one file without anything from elsewhere."""
