"""What each source needs to know, and how its files become the rows of two split tables."""
