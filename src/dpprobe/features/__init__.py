"""Features: extracted once, stored in checked shards, read by everything after."""
