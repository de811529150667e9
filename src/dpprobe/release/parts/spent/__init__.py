"""The total cost of all releases from the dataset, by the dataset's ledger."""
