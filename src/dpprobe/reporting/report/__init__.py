"""One page for people: `results/report.html`, a single file that opens offline.

Everything on it comes from files that other stages wrote: summaries, privacy statements, tables
and figures. Nothing is computed anew but which private result is best and how far it is from the
ceiling. The page asks for nothing from outside, which its own Content-Security-Policy enforces.
"""
