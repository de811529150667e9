"""Features: extracted once, stored in checked shards, and read by all later steps."""
