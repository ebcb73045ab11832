"""A corpus of several tasks, and an S3 server on this machine in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .conftest import prose, write_jsonl

SETS = ["curriculum.file_row_groups=1", "curriculum.row_group_tokens=600"]
TASK_BYTES = 4096


def write_corpus(folder: Path, files: int = 3) -> Path:
    """Write files that are a task each where a task has :data:`TASK_BYTES`."""
    for number in range(files):
        records = [{"id": f"{number}-{n}", "text": prose(100 * number + n)} for n in range(8)]
        records += [{"id": "copy", "text": prose(1)}, {"id": "blob", "text": "g4OD" * 999}]
        write_jsonl(folder / f"{number}.jsonl", [*records, b"{broken"])
    return folder


SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[dict[str, str]]:
    """Give the environment of a process that reaches the server; it ends with the block, or with this process."""
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        # Nothing of this machine's own settings may lead anywhere else.
        settings = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }
        yield settings
        server.stdin.close()
