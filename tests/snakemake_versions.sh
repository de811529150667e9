#!/usr/bin/env bash
# Plans the default study with the oldest Snakemake that is allowed and with the environment's, the newest, and runs the
# tests of modules with the oldest: `make test-snakemake`. Arguments: the Pythons with the oldest and the newest.
set -euo pipefail
cd "$(dirname "$0")/.."
plans=$(mktemp -d)
trap 'rm -rf "$plans"' EXIT

plan() { # python name
    "$1" -m snakemake --dry-run --directory "$plans" --configfile config/config.yaml --workflow-profile profiles/default \
        >"$plans/$2" 2>&1 || { cat "$plans/$2"; return 1; }
    # rules with their numbers of jobs
    sed -n '/^would run/,/^why/p' "$plans/$2" | sort >"$plans/$2.jobs"
    echo "Snakemake $("$1" -m snakemake --version): $(grep 'would run' "$plans/$2.jobs")"
}

plan "$1" oldest
plan "$2" newest
diff "$plans/oldest.jobs" "$plans/newest.jobs"
"$1" -m pytest -q -p no:cacheprovider tests/workflow/test_modules.py
