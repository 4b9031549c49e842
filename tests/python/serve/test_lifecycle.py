"""Starting and stopping, several models, and wrong options."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import numpy as np
import pytest
from running_server import RunningServer

from embedkit import Encoder
from embedkit.cli.serve import main
from embedkit.serve.server import bind

MANY = [f"word{n % 97} and some others {n}" for n in range(1500)]


def test_sigterm_drains_then_ends(start: Callable[..., RunningServer]) -> None:
    with start("--threads", "1", "--drain", "120") as running:

        async def load() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=running.url, timeout=60, trust_env=False) as http:
                tasks = [
                    asyncio.create_task(http.post("/v1/embeddings", json={"input": MANY})) for _ in range(3)
                ]
                while running.metric("embedkit_texts_total") == 0:
                    await asyncio.sleep(0.02)
                running.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.3)
                with pytest.raises(httpx.TransportError):
                    await http.get("/livez", headers={"connection": "close"})
                return await asyncio.gather(*tasks)

        responses = asyncio.run(load())
        assert [response.status_code for response in responses] == [200] * 3
        assert running.process.wait(20) == 0
        assert running.errors() == ""


def test_what_is_not_done_when_it_stops_is_told_so(start: Callable[..., RunningServer]) -> None:
    with start("--threads", "1", "--drain", "0.5") as running, ThreadPoolExecutor(2) as pool:
        body = {"input": ["word " * 300] * 2000}
        answers = [pool.submit(running.post, "/v1/embeddings", body) for _ in range(2)]
        while running.metric("embedkit_texts_total") == 0:
            time.sleep(0.02)
        running.process.send_signal(signal.SIGTERM)
        for response in (answer.result() for answer in answers):
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "stopping"
            assert response.headers["retry-after"] == "1"
        assert running.process.wait(20) == 0
        assert "Traceback" not in running.errors()


def test_kill_9_under_load_and_start_again(start: Callable[..., RunningServer]) -> None:
    with start() as running:
        port = running.port
        with running.connect() as connection:
            connection.sendall(
                b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{"
            )
            running.stop(signal.SIGKILL)
    with start("--port", str(port)) as again:
        assert again.port == port
        np.testing.assert_array_equal(
            np.float32(again.embed("a text")["data"][0]["embedding"]), Encoder().encode("a text")
        )


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_right_after_the_first_line_ends_it(
    start: Callable[..., RunningServer], sent: signal.Signals
) -> None:
    with start() as running:
        assert running.stop(sent) == 0
        assert running.errors() == ""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_loads_ends_it(
    sent: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(options: object) -> NoReturn:
        os.kill(os.getpid(), sent)
        raise AssertionError("not reached")

    monkeypatch.setattr("embedkit.serve.opening.open_state", load)
    assert main(["--port", "0"]) == code
    assert capsys.readouterr().err == "embedkit-serve: interrupted\n"


def test_models_beyond_the_memory_are_loaded_in_place_of_others(
    start: Callable[..., RunningServer], tmp_path: Path
) -> None:
    for name, size in (("a", 16), ("b", 24), ("c", 32)):
        Encoder(truncate_dim=size).save(tmp_path / name)
    models = [option for name in "abc" for option in ("--model", str(tmp_path / name))]
    weights = sum(path.stat().st_size for path in (tmp_path / "a").rglob("*.safetensors"))
    with start(
        *models, "--model", f"alias={tmp_path / 'a'}", "--max-memory", str(int(2.5 * weights))
    ) as running:

        def loaded() -> set[str]:
            listed = running.client.get("/v1/models").json()["data"]
            assert {model["id"] for model in listed} == {"a", "b", "c", "alias"}
            return {model["id"] for model in listed if model["loaded"]}

        assert loaded() == {"a", "alias", "b"}
        for name, size in (("b", 24), ("c", 32), ("alias", 16), ("c", 32)):
            answer = running.embed("a text", model=name)
            assert len(answer["data"][0]["embedding"]) == size
            assert answer["model"] == name
        assert loaded() == {"a", "alias", "c"}
        assert len(running.embed("no model named")["data"][0]["embedding"]) == 16


def test_wrong_options_end_it_before_it_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Encoder().save(tmp_path / "x" / "m")
    Encoder(truncate_dim=8).save(tmp_path / "y" / "m")
    (tmp_path / "empty").write_text("\n", encoding="utf-8")
    for arguments, message in (
        (["--model", str(tmp_path / "nothing")], "nothing"),
        (["--model", str(tmp_path / "x/m"), "--model", str(tmp_path / "y/m")], "two models are named 'm'"),
        (
            ["--rerank", str(tmp_path / "x/m"), "--rerank", str(tmp_path / "y/m")],
            "two models are named 'm'; name one with --rerank NAME=MODEL",
        ),
        (
            ["--model", str(tmp_path / "x/m"), "--rerank", str(tmp_path / "y/m")],
            "a model and a reranker are named 'm'; name the reranker with --rerank NAME=MODEL",
        ),
        (["--model", ""], "argument --model: it is empty; give a value"),
        (["--rerank", ""], "argument --rerank: it is empty"),
        (["--index", ""], "argument --index: it is empty"),
        (["--host", ""], "argument --host: it is empty"),
        (["--allow-host", ""], "argument --allow-host: it is empty"),
        (["--max-memory", "1MB"], "--max-memory allows 1,000,000"),
        (["--max-memory", "0"], "argument --max-memory: '0': a size is at least 1 byte"),
        (["--max-body", "0"], "argument --max-body: '0': a size is"),
        (["--api-key-file", str(tmp_path / "empty")], "no API key"),
        (["--api-key-file", str(tmp_path / "none")], "none: No such file"),
        (["--timeout", "-1"], "invalid number of seconds"),
        (["--port", "99999"], "argument --port: invalid port: '99999'; expected a number from 0 to 65535"),
        (["--port", "-1"], "argument --port: invalid port: '-1'"),
        (["--host", "a" * 300], "no such host; give an address of this machine"),
        (["--index", str(tmp_path)], "index"),
    ):
        assert main(["--port", "0", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_closed_stdout(start: Callable[..., RunningServer]) -> None:
    code = (
        "import sys; sys.stdout = sys.stderr = None; from embedkit.cli import serve\n"
        "def run(*_, ready, **__): ready()\n"
        "import embedkit.serve.server as server; server.run = run\n"
        "sys.exit(serve.main(['--port', '0', '--threads', '1']))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["--port", port]) == 1
    assert f"--host 127.0.0.1 --port {port}: Address already in use" in capsys.readouterr().err


def test_a_server_that_loads_its_models_has_the_port() -> None:
    (first,) = bind("127.0.0.1", 0)
    with first, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", first.getsockname()[1])


def test_it_listens_on_loopback_only_unless_told(start: Callable[..., RunningServer]) -> None:
    with start() as running:
        local = Path("/proc/net/tcp").read_text(encoding="ascii")
        assert f"0100007F:{running.port:04X} 00000000:0000 0A" in local
        assert f"00000000:{running.port:04X} 00000000:0000 0A" not in local
    with start("--host", "0.0.0.0") as running:
        deadline = time.monotonic() + 5
        while "anyone who reaches" not in running.errors() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "--api-key" in running.errors()
