"""Opens one image, of whatever format, and judges whether it can be used."""
