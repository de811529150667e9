"""One page for people: `results/report.html`, a single file that opens offline.

All content comes from files that other stages wrote: summaries, records, privacy statements and
figures. The report computes tables, the best private results and their gap to the non-private
baseline from these files. A Content-Security-Policy prevents the page from loading anything else.
"""
