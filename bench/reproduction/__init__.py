"""Makes the reproduction page: every published number, with our result or the way to get one."""
