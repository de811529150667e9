"""Features: extracted once, stored in checked shards, read by everything after."""

# Raised when extraction writes other shards or another manifest for the same inputs.
VERSION = 1
