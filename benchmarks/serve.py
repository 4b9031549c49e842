"""Load on a server of embeddings: `python benchmarks/serve.py [--output FILE]`.

Starts ``embedkit-serve``, a plain FastAPI + sentence-transformers server and, where it is installed, infinity-emb, one
after the other on loopback with the same model, and asks each from an asyncio client in a process of its own. Prints
requests and texts a second, latencies (p50, p95, p99), and `Encoder.encode`'s own speed in the same run, after each
server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common import (
    built_in,
    machine_info,
    model_folder,
    percentile,
    positive,
    report,
    sample_texts,
    versions,
    write_json,
)

_MAIN = "import sys; from embedkit.cli.serve import main; sys.exit(main(sys.argv[1:]))"
_PACKAGES = ["embedkit", "uvicorn", "starlette", "uvloop", "fastapi", "sentence-transformers", "infinity-emb"]


@dataclass(frozen=True)
class Load:
    """What a client sends.

    Attributes:
        words: "short" for the corpus' texts, "long" for texts of about 200 tokens.
        texts: of a request.
        connections: clients, each of which waits for its answer before it asks again.
    """

    words: str
    texts: int
    connections: int

    @property
    def name(self) -> str:
        return f"{self.words}, {self.texts} a request, {self.connections} connections"


LOADS = [
    Load("short", 1, 1),
    Load("short", 1, 8),
    Load("short", 1, 64),
    Load("long", 1, 1),
    Load("long", 1, 64),
    Load("short", 32, 1),
    Load("short", 32, 16),
]


def long_texts(count: int) -> list[str]:
    """Texts of about 200 tokens."""
    short = sample_texts(count * 12)
    return [" ".join(short[at * 12 : at * 12 + 12]) for at in range(count)]


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes) -> int:
    """One request on an open connection; returns the bytes of the answer's body."""
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"the server answered {head.splitlines()[0]!r}")
    size = length_of(head)
    await reader.readexactly(size)
    return size


def length_of(head: bytes) -> int:
    """The Content-Length of an answer."""
    lines = head.lower().splitlines()
    return next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length"))


async def load_once(port: int, load: Load, bodies: list[bytes], seconds: float) -> tuple[int, list[float]]:
    """Ask for some seconds; returns answers and their latencies."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds
    turn = iter(range(10**9))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        while time.perf_counter() < end:
            body = bodies[next(turn) % len(bodies)]
            head = (
                f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            begin = time.perf_counter()
            await request(reader, writer, head.encode() + body)
            latencies.append(time.perf_counter() - begin)
        writer.close()

    await asyncio.gather(*(client() for _ in range(load.connections)))
    return len(latencies), latencies


def drive(port: int, model: str, load: Load, seconds: float) -> dict[str, Any]:
    """The figures of one load, after a short warm-up."""
    texts = long_texts(400) if load.words == "long" else sample_texts(4096)
    bodies = [
        json.dumps(
            {"model": model, "input": texts[at : at + load.texts] if load.texts > 1 else texts[at]}
        ).encode()
        for at in range(0, len(texts) - load.texts + 1, load.texts)
    ]
    warm, _ = asyncio.run(load_once(port, load, bodies, min(1.0, seconds / 4)))
    begin = time.perf_counter()
    answers, latencies = asyncio.run(load_once(port, load, bodies, seconds))
    took = time.perf_counter() - begin
    return {
        **asdict(load),
        "answers": warm + answers,
        "requests_per_second": round(answers / took, 1),
        "texts_per_second": round(answers * load.texts / took, 1),
        **{f"p{percent}_ms": round(percentile(latencies, percent) * 1e3, 3) for percent in (50, 95, 99)},
    }


def soak(port: int, pid: int, model: str, expected: dict[str, bytes], seconds: float) -> dict[str, Any]:
    """Load of 32 connections for long: answers that are lost, refused (such as 504) or wrong, and memory.

    Args:
        port, pid: of the server.
        model: its name in requests.
        expected: texts, and the JSON array of their vectors.
        seconds: how long.
    """
    texts = list(expected)
    counts = {"sent": 0, "answered": 0, "refused": 0, "wrong": 0}
    resident: list[int] = []
    end = time.monotonic() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        at = number
        while time.monotonic() < end:
            chosen = [texts[(at + i) % len(texts)] for i in range((1, 1, 1, 8)[at % 4])]
            at += 37
            body = json.dumps({"model": model, "input": chosen}).encode()
            counts["sent"] += 1
            writer.write(
                b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(length_of(head))
            counts["answered"] += 1
            if not head.startswith(b"HTTP/1.1 200"):
                counts["refused"] += 1
                continue
            right = all(
                b'"index":%d,"embedding":%b}' % (i, expected[text]) in answer for i, text in enumerate(chosen)
            )
            counts["wrong"] += not right
        writer.close()

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(min(5, seconds / 4))
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
            resident.append(int(status.partition("VmRSS:")[2].split()[0]))

    async def both() -> None:
        await asyncio.gather(watch(), *(client(number) for number in range(32)))

    asyncio.run(both())
    quarter = max(1, len(resident) // 4)
    return {
        "seconds": seconds,
        **counts,
        "resident_mb_first_quarter": round(statistics.median(resident[:quarter]) / 1e3, 1),
        "resident_mb_last_quarter": round(statistics.median(resident[-quarter:]) / 1e3, 1),
        "resident_mb_peak": round(max(resident) / 1e3, 1),
    }


def alone(model: Path | None, seconds: float) -> dict[str, float]:
    """`Encoder.encode` without a server: texts a second in lists, and the p50 of one text."""
    from embedkit import Encoder

    encoder = Encoder(model)
    found: dict[str, float] = {}
    for words, texts in (("short", sample_texts(512)), ("long", long_texts(128))):
        encoder.encode(texts)
        rates, single, used = [], [], 0.0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin, cpu = time.perf_counter(), time.process_time()
            encoder.encode(texts)
            used += time.process_time() - cpu
            rates.append(len(texts) / (time.perf_counter() - begin))
        for text in texts[:200]:
            begin = time.perf_counter()
            encoder.encode(text)
            single.append(time.perf_counter() - begin)
        found[f"{words}_texts_per_second"] = round(statistics.median(rates), 1)
        found[f"{words}_cpu_ms_per_text"] = round(used / len(rates) / len(texts) * 1e3, 3)
        found[f"{words}_single_p50_ms"] = round(statistics.median(single) * 1e3, 3)
    return found


def cpu_seconds(pid: int) -> tuple[float, float]:
    """Processor seconds of a process: those of its main thread, which runs the event loop, and those of the others."""
    ticks = os.sysconf("SC_CLK_TCK")

    def seconds(stat: str) -> float:
        fields = Path(stat).read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    main = seconds(f"/proc/{pid}/task/{pid}/stat")
    return main, seconds(f"/proc/{pid}/stat") - main  # the whole process, threads that have ended included


@contextmanager
def serving(command: list[str], port: int) -> Iterator[int]:
    """A server process that answers at ``port``; its id."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise SystemExit(f"something answers at port {port} already: stop it, or give --port")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
                answers = True
            except OSError:
                answers = False
            if process.poll() is not None:  # whatever answers is another server
                raise SystemExit(f"{shlex.join(command)} ended with {process.returncode}")
            if answers:
                break
            time.sleep(0.1)
        else:
            raise SystemExit(f"{command[0]} does not answer at port {port}")
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def commands(model: Path | None, port: int, infinity: list[str]) -> dict[str, tuple[list[str], str]]:
    """The servers that are installed: a command, and the name that requests give the model."""
    own = [sys.executable, "-c", _MAIN, "--port", str(port)]
    if model is None:
        return {"embedkit-serve": (own, "embedkit-256-int8")}
    own += ["--model", f"m={model}"]
    found = {"embedkit-serve": (own, "m")}
    for precision in ("bf16", "int8"):
        found[f"embedkit-serve {precision}"] = ([*own, "--precision", precision], "m")
    if find_spec("fastapi") and find_spec("sentence_transformers"):
        peer = Path(__file__).parent / "peers" / "fastapi_server.py"
        found["fastapi + sentence-transformers"] = ([sys.executable, str(peer), str(model), str(port)], "m")
    if infinity:
        command = [*infinity, "v2", "--model-id", str(model), "--served-model-name", "m", "--port", str(port)]
        command += ["--host", "127.0.0.1", "--url-prefix", "/v1", "--device", "cpu"]
        found["infinity-emb"] = (command, "m")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Load on a server of embeddings, beside its peers.")
    parser.add_argument(
        "--model",
        type=model_folder,
        help="a folder of sentence-transformers (default: the built-in model, alone)",
    )
    parser.add_argument("--port", type=int, default=18080)
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default: 5)")
    parser.add_argument(
        "--runs", type=positive, default=3, help="alternating runs, of which the median (default: 3)"
    )
    parser.add_argument(
        "--infinity",
        default=shutil.which("infinity_emb") or "",
        metavar="COMMAND",
        help="what starts infinity_emb, which needs an environment of its own (transformers below 5)",
    )
    parser.add_argument("--output", type=Path, help="write the results to this file (.json)")
    parser.add_argument(
        "--soak",
        type=float,
        metavar="SECONDS",
        help="instead: load on embedkit-serve for long, and its memory",
    )
    parser.add_argument("--drive", nargs=2, metavar=("LOAD", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        load = Load(**json.loads(options.drive[0]))
        print(json.dumps(drive(options.port, options.drive[1], load, options.seconds)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # an exit also ends the server
    machine = machine_info()
    if options.soak:
        result = report("serve-soak", machine=machine, soak=soaked(options))
        if options.output:
            write_json(options.output, result)
        return
    runs: dict[str, list[list[dict[str, Any]]]] = {}
    encoder = []
    for _ in range(options.runs):
        encoder.append(alone(options.model, options.seconds / 2))
        for name, (command, model) in commands(
            options.model, options.port, shlex.split(options.infinity)
        ).items():
            with serving(command, options.port) as pid:
                found = [drive_apart(options, load, model, pid) for load in LOADS]
            runs.setdefault(name, []).append(found)
            for row in found:
                print(name, row, flush=True)
            result = report(
                "serve",
                machine=machine,
                versions=versions(_PACKAGES),
                model=options.model.name if options.model else "built-in",
                **built_in(options.model),
                seconds=options.seconds,
                runs=min(map(len, runs.values())),
                encoder={name: statistics.median(one[name] for one in encoder) for name in encoder[0]},
                servers={name: medians(found) for name, found in runs.items()},
            )
            if options.output:
                write_json(options.output, result, finished=False)
    if options.output:
        write_json(options.output, result)


def soaked(options: argparse.Namespace) -> dict[str, Any]:
    """`soak` on a server of its own."""
    import orjson

    from embedkit import Encoder

    texts = [*sample_texts(400), *long_texts(20)]
    vectors = Encoder(options.model).encode(texts)
    rows = [orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY) for row in vectors]
    command, name = commands(options.model, options.port, [])["embedkit-serve"]
    with serving(command, options.port) as pid:
        found = soak(options.port, pid, name, dict(zip(texts, rows, strict=True)), options.soak)
    print(found)
    return found


def drive_apart(options: argparse.Namespace, load: Load, model: str, pid: int) -> dict[str, Any]:
    """`drive` in a process of its own, and the processor time that the server's threads took for it."""
    before = cpu_seconds(pid)
    command = [sys.executable, __file__, "--port", str(options.port), "--seconds", str(options.seconds)]
    command += ["--drive", json.dumps(asdict(load)), model]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the client failed under {load.name} (exit status {done.returncode})")
    found: dict[str, Any] = json.loads(done.stdout)
    after = cpu_seconds(pid)
    answers = found.pop("answers")
    for name, begin, end in zip(("event_loop", "other_threads"), before, after, strict=True):
        found[f"{name}_cpu_ms_per_request"] = round((end - begin) / answers * 1e3, 3)
    return found


def medians(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The median of each figure over the runs."""
    pick: Callable[[Any], Any] = statistics.median
    return [
        {
            name: value if isinstance(value, str) else pick([run[at][name] for run in runs])
            for name, value in row.items()
        }
        for at, row in enumerate(runs[0])
    ]


if __name__ == "__main__":
    main()
