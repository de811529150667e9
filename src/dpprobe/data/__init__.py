"""Turns a source of data into two split tables and their description."""
