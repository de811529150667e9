"""The study a user writes: its options, checks, schema and catalog."""
