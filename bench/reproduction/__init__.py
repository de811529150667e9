"""The reproduction page: every published number, ours beside it or what it takes."""
