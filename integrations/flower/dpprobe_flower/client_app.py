"""A site's side: writes the others' files into its exchange, runs `dpprobe site`, answers with its.

A SuperNode's `--node-config` has what `take_turn` needs of a site.
"""

from __future__ import annotations

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dpprobe_flower.turns import take_turn

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """Takes one turn: writes what came, lets dpprobe do what it can, and sends what is new."""
    node = {name: str(value) for name, value in context.node_config.items()}
    asked = message.content["asked"]
    files = {name: bytes(content) for name, content in message.content["files"].items()}
    status, new = take_turn(node, asked["action"], files, asked["known"])
    answered = {"state": ConfigRecord({"status": status}), "files": ConfigRecord(new)}
    return Message(RecordDict(answered), reply_to=message)
