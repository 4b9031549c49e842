"""A server process on loopback, for tests."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

for _name in ("httptools", "httpx", "orjson", "prometheus_client", "pydantic", "starlette", "uvicorn"):
    pytest.importorskip(_name, reason=f"{_name} is not installed: pip install 'embedkit[serve]' httpx")

import httpx

_COMMAND = [
    sys.executable,
    "-c",
    "import sys; from embedkit.cli.serve import main; sys.exit(main(sys.argv[1:]))",
]


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until ``holds`` is true: what follows an answer, as a count of it, comes a moment later."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class RunningServer:
    """``embedkit-serve --port 0 ARGUMENTS``, ended with the block."""

    def __init__(self, *arguments: str, log: Path, environment: dict[str, str] | None = None) -> None:
        self._log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*_COMMAND, "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HF_HUB_OFFLINE": "1", **(environment or {})},
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"on (http://([\d.]+|\[[\d:]+\]):(\d+))$", line.strip())
        if found is None:
            self.process.wait(30)
            raise RuntimeError(f"it did not start: {line!r} {self.errors()}")
        self.url = found[1]
        self.port = int(found[3])
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def errors(self) -> str:
        """What it has written to stderr."""
        return self._log.read_text(encoding="utf-8")

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """A request with a JSON body."""
        return self.client.post(path, json=body, **options)

    def embed(self, texts: Any, **fields: Any) -> Any:
        """The answer of /v1/embeddings."""
        response = self.post("/v1/embeddings", {"input": texts, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def connect(self, timeout: float = 10) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            wanted = head == name or head.startswith(name + "{")
            if wanted and all(f'{label}="{one}"' in head for label, one in labels.items()):
                total += float(value)
        return total

    def memory(self) -> int:
        """Resident bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(text.partition("VmRSS:")[2].split()[0]) * 1024

    def files(self) -> int:
        """Open file descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self, sent: int = signal.SIGTERM) -> int:
        """Signal it and wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sent)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()
