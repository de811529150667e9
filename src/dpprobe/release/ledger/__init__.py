"""The ledger of a dataset: its file, the units of its releases, and their total cost."""
