"""Models with media towers, of which the text model is read: text in, text out."""
