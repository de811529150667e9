"""DP training of a network's head together with its last blocks, all blocks, or adapters."""
