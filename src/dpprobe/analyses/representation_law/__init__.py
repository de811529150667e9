"""Laws of separability over the blocks of networks, not private."""
