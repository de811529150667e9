"""Helpers of the tests: data, servers and files that several test modules use."""
