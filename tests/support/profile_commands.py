"""Runs the Slurm profile's commands, each in a fork of a process that has imported them.

    python -S -E tests/support/profile_commands.py PROFILE

Reads a request, in JSON, from each line of standard input, and prints the exit status of the
command's process. Forks save most of a command's time: starting Python and importing modules.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def become(request: dict[str, Any]) -> None:
    """Runs a command in this process, with the request's folder, environment and files."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    files = {0: (os.devnull, os.O_RDONLY)}
    for number, name in ((1, "output"), (2, "errors")):
        files[number] = (request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, (path, flags) in files.items():
        file = os.open(path, flags)
        os.dup2(file, number)
        os.close(file)
    command, *words = request["words"]
    sys.argv = [command, *words]
    importlib.import_module(command.partition(".")[0]).main()


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    for name in ("status", "states", "submit"):
        importlib.import_module(name)
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            become(json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
