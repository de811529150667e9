#!/usr/bin/env bash
# Snakemake runs this once, from the working directory, in the environment it has just made.
set -euo pipefail
python -m pip install --no-deps --no-build-isolation --editable .
