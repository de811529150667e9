"""One page for people: `results/report.html`, a single file that opens offline.

All content comes from files that other stages wrote: summaries, records, privacy statements and
figures. Tables are made again from the data of their files; only the best private results and their
gap to the non-private baseline are computed again. The page loads nothing from outside, which its
Content-Security-Policy enforces.
"""
