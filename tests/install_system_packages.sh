#!/bin/sh
# Installs what some tests need beside Python: a browser, PostgreSQL. Tests that lack it skip with a reason.
set -eu

missing=""
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v chromedriver >/dev/null 2>&1 || missing="$missing chromium-driver"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 ||
    missing="$missing postgresql"

if [ -z "$missing" ]; then
    echo "system packages: nothing to install"
elif [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    # shellcheck disable=SC2086  # one word a package
    apt-get install -y --no-install-recommends $missing
else
    echo "system packages: missing:$missing; install them as root with your package manager," \
        "or the tests that need them are skipped" >&2
fi
