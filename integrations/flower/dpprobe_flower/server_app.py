"""The server's side: passes the files of each site on to all others, until all are complete.

It holds masked sums only, and can neither read nor change them: dpprobe signs them.
"""

from __future__ import annotations

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

COMPLETE, WAITING = 0, 3  # as in client_app

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
    known: dict[int, set[str]] = {node: set() for node in nodes}
    turn, complete = 0, False
    while not complete:
        turn += 1
        messages = [
            Message(
                RecordDict(
                    {
                        "files": ConfigRecord(
                            {name: files[name] for name in sorted(set(files) - known[node])}
                        ),
                        "known": ConfigRecord({"names": sorted(files)}),
                    }
                ),
                dst_node_id=node,
                message_type="query",
            )
            for node in nodes
        ]
        for node in nodes:
            known[node] |= set(files)
        replies = list(grid.send_and_receive(messages))
        statuses = []
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"site {reply.metadata.src_node_id}: {reply.error.reason}")
            state = reply.content["state"]
            if state["status"] not in (COMPLETE, WAITING):
                raise RuntimeError(f"site {reply.metadata.src_node_id}: {state['said']}")
            new = {name: bytes(content) for name, content in reply.content["files"].items()}
            files.update({name: new[name] for name in new if name not in files})
            known[reply.metadata.src_node_id] |= set(new)
            statuses.append(state["status"])
        complete = len(statuses) == len(nodes) and not any(statuses)
        size = sum(map(len, files.values()))
        print(f"turn {turn}: {len(files)} files, {size:,} bytes, {statuses.count(0)} complete")
