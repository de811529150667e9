"""The study a user writes: its options, checks, messages, schema and catalog."""
