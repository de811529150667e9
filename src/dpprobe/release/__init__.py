"""Releases one trained head: fresh noise, ledger, bundle, and the commands of its users."""
