"""Attacks on trained heads: what an attacker makes of a mechanism, beside what it promises."""
