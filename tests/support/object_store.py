"""A server of S3 on this machine, with one empty bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import Request, urlopen

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "bucket"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key-of-nobody", "AWS_SECRET_ACCESS_KEY": "secret-of-nobody"}


def check_keys_after(address: str, count: float) -> None:
    """Has the server ask for keys that it knows, after so many requests that may have any."""
    _post(f"{address}/moto-api/reset-auth", str(count))


@contextmanager
def object_store() -> Iterator[tuple[str, Any]]:
    """Yields the server's address and a client of it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    # a server before it, in this process, has left its buckets
    _post(f"{address}/moto-api/reset")
    check_keys_after(address, float("inf"))
    client = boto3.client(
        "s3",
        endpoint_url=address,
        region_name="us-east-1",
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=BUCKET)
    try:
        yield address, client
    finally:
        server.stop()


def _post(address: str, text: str = "") -> None:
    asked = Request(address, text.encode(), {"Content-Type": "text/plain"}, method="POST")
    with urlopen(asked, timeout=60):
        pass
