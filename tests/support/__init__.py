"""Test helpers: data, servers and files for several test modules."""
