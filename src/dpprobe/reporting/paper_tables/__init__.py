"""The tables of the papers, with published numbers beside a study's results.

Published numbers come from `resources/published.yaml`, measured numbers from the cells of one
study. Cells that were not run are blank, and a note gives the command that runs them.
"""
