"""One page for people: `results/report.html`, a single file that opens offline.

Everything on it comes from files that other stages wrote: summaries, records, privacy statements
and figures. Tables are made again from the data of their files; computed again are only the best
private results and their gap to the ceiling. The page asks for nothing from outside, which its
Content-Security-Policy enforces.
"""
