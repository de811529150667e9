"""Verifies a bundle as any person who received the bundle can."""
