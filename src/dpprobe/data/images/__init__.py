"""Opens one image of any format, and checks whether it can be used."""
