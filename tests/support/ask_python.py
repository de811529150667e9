"""Asks a server of `warm_python.py` to run a Python, and ends with the Python's exit status.

    python -ISu tests/support/ask_python.py SOCKET -m snakemake ARGUMENTS...

Each run and each job of a test starts this program, so it imports only built-in modules: other
modules took three quarters of its time.
"""

import _signal  # type: ignore[import-not-found]  # `signal` imports much
import _socket
import marshal
import os
import sys

LENGTH = 4  # bytes of a number in a message
SIGNALS = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP)


def ask(path: str, arguments: list[str]) -> int:
    """Lets the server run Python with these arguments, and ends in the same way."""
    request = marshal.dumps(
        {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}  # noqa: PTH109
    )
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
    connection.sendmsg([len(request).to_bytes(LENGTH, "big")], rights)
    connection.sendall(request)
    process = int.from_bytes(connection.recv(LENGTH), "big")
    for each in SIGNALS:
        _signal.signal(each, lambda number, _: os.kill(process, number))
    answer = connection.recv(LENGTH)
    if len(answer) < LENGTH:
        return 1  # the server and its process are gone
    status = os.waitstatus_to_exitcode(int.from_bytes(answer, "big"))
    if status < 0:
        if -status in SIGNALS:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))
