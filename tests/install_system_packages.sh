#!/bin/sh
# Installs what some tests need beside Python: a browser, PostgreSQL, LaTeX, rsync, Slurm. Tests that lack it skip with
# a reason. With names as arguments (browser, postgresql, latex, storage, slurm) what these need; Slurm only by its name.
set -eu

missing=""
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

need() { # command package...
    command -v "$1" >/dev/null 2>&1 && return
    shift
    missing="$missing $*"
}

[ $# -gt 0 ] || set -- browser postgresql latex storage
for part in "$@"; do
    case $part in
    browser)
        need chromium chromium
        need chromedriver chromium-driver
        ;;
    postgresql)
        ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need initdb postgresql
        ;;
    latex)
        need pdflatex texlive-latex-base texlive-latex-recommended
        ;;
    storage)
        need rsync rsync
        ;;
    slurm)
        need munged munge
        need slurmctld slurmctld
        need slurmd slurmd
        need sbatch slurm-client
        # an accounting database
        need mariadbd mariadb-server
        need slurmdbd slurmdbd
        ;;
    *)
        echo "system packages: unknown part: $part" >&2
        exit 2
        ;;
    esac
done

# Nobody is there to type a password: sudo counts only where it needs none, as on hosted machines.
as_root=
[ "$(id -u)" -eq 0 ] || as_root="sudo -n"

if [ -z "$missing" ]; then
    echo "system packages: nothing to install"
elif command -v apt-get >/dev/null 2>&1 && $as_root true 2>/dev/null; then
    $as_root apt-get update
    # shellcheck disable=SC2086  # one word a package
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
else
    echo "system packages: missing:$missing; install them as root with your package manager," \
        "or the tests that need them are skipped" >&2
fi
