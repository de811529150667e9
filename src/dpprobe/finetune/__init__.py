"""DP training of a network: its last blocks, all of it, or adapters, with the head."""
