"""A site's side: writes the others' files into its exchange, runs `dpprobe site`, answers with its.

A SuperNode has, in `--node-config`:

    command  the `dpprobe` of this site's environment
    folder   where the site's study is; commands run there
    study    the study's file
    release  the release
    exchange its folder of messages, `sites.exchange` with the release's name
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpprobe_flower.files import read_files, write_files

COMPLETE, WAITING = 0, 3  # exit status of `dpprobe site sums`

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Takes one turn: writes what came, lets dpprobe do what it can, and sends what is new."""
    node = {name: str(value) for name, value in context.node_config.items()}
    exchange = Path(node["folder"]) / node["exchange"]
    files = {name: bytes(content) for name, content in message.content["files"].items()}
    write_files(exchange, files)
    known = [*message.content["known"]["names"], *files]
    status, said = COMPLETE, ""
    for action in ("keys", "sums"):
        command = [node["command"], "site", action, node["release"], "--configfile", node["study"]]
        done = subprocess.run(
            command, cwd=node["folder"], capture_output=True, text=True, check=False
        )
        status, said = done.returncode, done.stderr.strip()[-2000:]
        if status not in (COMPLETE, WAITING):
            break
    state = ConfigRecord({"status": status, "said": said if status not in (0, 3) else ""})
    new = ConfigRecord(read_files(exchange, without=known))
    return Message(RecordDict({"state": state, "files": new}), reply_to=message)
