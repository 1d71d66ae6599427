"""The demo model ships inside the package, so the first answer needs no download."""
