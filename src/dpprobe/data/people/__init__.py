"""Says which rows are of one person, and keeps each person on one side of a split."""
