#!/usr/bin/env bash
# Snakemake runs this once, from the working directory, in the environment it has just made.
# `dpprobe run` says where the files of dpprobe are; without it this is the root of a clone.
# Snakemake looks for one script beside each conda file, so envs/ has this script three times.
set -euo pipefail
root=${DPPROBE_ROOT:-.}
if [ -f "$root/pyproject.toml" ]; then
    python -m pip install --no-deps --no-build-isolation --editable "$root"
else # an installed dpprobe is copied: no index need have it
    site=$(dirname "$(dirname "$root")")
    there=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cp -R "$site/dpprobe" "$site"/dpprobe-*.dist-info "$there"
fi
