"""A server that speaks S3, for tests: moto's, a process of its own on a free port. It keeps all in its memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import obstore
from obstore.store import S3Store

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}


class S3Process:
    """The server; `bucket` makes a new one, so that tests do not see each other's keys."""

    def __init__(self, log: Path) -> None:
        """`log`: a file for what it says."""
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._names = count(1)
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        while not self._answers():
            assert self._process.poll() is None, log.read_text()
            time.sleep(0.05)  # another process: there is only asking

    def bucket(self) -> str:
        """The name of a new bucket."""
        name = f"bucket-{next(self._names)}"
        self._put(f"/{name}")
        return name

    def remove(self, bucket: str) -> None:
        """Remove a bucket and all that is in it."""
        store = S3Store(bucket, endpoint=self.endpoint, client_options={"allow_http": True})
        obstore.delete(store, [meta["path"] for meta in obstore.list(store).collect()])
        urlopen(Request(f"{self.endpoint}/{bucket}", method="DELETE"), timeout=10).close()

    def uri(self, bucket: str, folder: str = "sdcp") -> str:
        """The URI of a cache in it."""
        return f"s3://{bucket}/{folder}?endpoint={self.endpoint}"

    def pause(self) -> None:
        """SIGSTOP: it is there, and does not answer."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
        except (URLError, OSError):
            return False
        return True

    def _put(self, path: str) -> None:
        urlopen(Request(f"{self.endpoint}{path}", data=b"", method="PUT"), timeout=10).close()


_SERVE = "import sys; from moto.server import main; sys.exit(main(sys.argv[1:]))"


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
