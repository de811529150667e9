"""The tables of the papers, with published numbers beside a study's results.

Published numbers come from `resources/published.yaml`, measured ones from the cells of one study,
whatever it ran. Cells that were not run are blank, and a note says how to run them.
"""
