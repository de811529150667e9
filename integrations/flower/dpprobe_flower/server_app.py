"""The server's side: passes the files of each site on to all others, until all are complete.

It holds masked sums only, and can neither read nor change them: dpprobe signs them.
"""

from __future__ import annotations

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from dpprobe_flower.turns import FIRST, LATER, add_answers

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Sends each site the files that it lacks, and collects what is new."""
    sites = int(context.run_config["sites"])
    deadline = time.monotonic() + float(context.run_config["wait-seconds"])
    while len(nodes := sorted(grid.get_node_ids())) < sites:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(nodes)} of {sites} sites are connected")
        time.sleep(1)
    files: dict[str, bytes] = {}
    sent: dict[int, set[str]] = {node: set() for node in nodes}
    action, turn, complete = FIRST, 0, False
    while not complete:
        turn += 1
        asked = ConfigRecord({"action": action, "known": sorted(files)})
        messages = []
        for node in nodes:
            new = ConfigRecord({name: files[name] for name in sorted(set(files) - sent[node])})
            content = RecordDict({"files": new, "asked": asked})
            messages.append(Message(content, dst_node_id=node, message_type="query"))
            sent[node] |= set(files)
        answers = {}
        for reply in grid.send_and_receive(messages):
            node = reply.metadata.src_node_id
            if reply.has_error():
                raise RuntimeError(f"site {node}: {reply.error.reason}")
            new = {name: bytes(content) for name, content in reply.content["files"].items()}
            answers[str(node)] = reply.content["state"]["status"], new
            sent[node] |= set(new)
        done = add_answers(files, answers)
        complete = action == LATER and len(answers) == len(nodes) and done
        action = LATER
        size = sum(map(len, files.values()))
        print(f"turn {turn}: {len(files)} files, {size:,} bytes")
