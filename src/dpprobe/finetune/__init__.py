"""DP training of a network's head with its last blocks, all blocks, or adapters."""
