"""The tables of the papers, with published numbers next to a study's results.

Published numbers come from `resources/published.yaml`, measured numbers from the cells of one
study. A cell that was not run is blank, and a note gives the command that runs the cell.
"""
