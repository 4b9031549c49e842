"""A peer in its own process, stopped while others are measured.

Thread pools disturb each other: the threads of ONNX Runtime and OpenMP spin for a while after their work is done.
So every peer has its own process, on the same CPUs as all others, and is frozen by SIGSTOP except while it works.
"""

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import common
import numpy as np

from peers import peer_class
from peers.base import Peer, Setting

__all__ = ["PeerFailed", "Worker", "alternate", "best_setting"]

PR_SET_PDEATHSIG = 1  # from Linux' prctl.h


class PeerFailed(RuntimeError):
    """The peer raised; the message holds what was told, such as the worker's traceback."""

    def __init__(self, key: str, told: str) -> None:
        told = told.strip() or "the process failed"
        super().__init__(f"{key}: {told}")
        self.reason = told.splitlines()[-1].strip()
        """The last line of what was told."""


class Worker:
    """The parent's end: each method waits for the worker's answer."""

    def __init__(
        self,
        key: str,
        model: Path | None,
        threads: int,
        cache: Path,
        cpus: list[int],
        *,
        patience: float | None = None,
        isa: str | None = None,
    ) -> None:
        """Start the process; nothing is loaded yet.

        Args:
            key: a `--peers` name.
            model: model folder.
            threads: number of threads of the peer.
            cache: folder for converted models.
            cpus: the CPUs to run on.
            patience: time limit of a call in seconds; after it the process is ended and the call fails. None for none.
            isa: limit the peer to this instruction set; None for the machine's best.
        """
        self.key = key
        self._patience = patience
        self._given = (model, threads, cache)
        self._cpus = cpus
        self._isa = isa
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        before = dict(os.environ)
        threads = str(self._given[1])
        # The packages read these when they are imported, so they must be set when the process starts.
        os.environ.update({"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads})
        os.environ.update({"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"})
        os.environ.update(peer_class(self.key).isa_environment[self._isa] if self._isa else {})
        try:
            self._process = context.Process(
                target=_serve, args=(theirs, self.key, self._given, self._cpus), daemon=True
            )
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()

    def convert(self) -> None:
        """`Peer.convert`."""
        self._call("convert")

    def settings(self) -> list[Setting]:
        """`Peer.settings`."""
        return self._call("settings")

    def load(self, streams: int) -> float:
        """Load the model, in a new process if the last one has ended; return the seconds it took."""
        if not self._process.is_alive():
            self._pipe.close()
            self._start()
        return self._call("load", streams)

    def texts(self, texts: list[str]) -> None:
        """Send the texts of the following `run` calls, so that sending them is not timed."""
        self._call("texts", texts)

    def run(self, batch: int | None) -> float:
        """Encode all texts once; return the seconds it took."""
        return self._call("run", batch)

    def alone(self, batch: int | None) -> float:
        """`Peer.encode_alone` of all texts."""
        return self._call("alone", batch)

    def one_by_one(self) -> list[float]:
        """Encode each text alone; return the seconds of each call."""
        return self._call("one_by_one")

    def vectors(self) -> np.ndarray:
        """The vectors of the last `run`."""
        return self._call("vectors")

    def peak_mb(self) -> int:
        """The most memory (10⁶ bytes) that the process has had since the model was loaded; loading may be its peak."""
        return self._call("peak_mb")

    def _call(self, method: str, *arguments: Any) -> Any:
        pid = self._process.pid
        assert pid is not None
        try:
            os.kill(pid, signal.SIGCONT)
            self._pipe.send((method, arguments))
            if self._patience is not None and not self._pipe.poll(self._patience):
                self._end()
                raise PeerFailed(self.key, f"{method} took more than {self._patience:g} s")
            failed, answer = self._pipe.recv()
        except (EOFError, OSError):
            self._end()
            raise PeerFailed(self.key, "the process ended") from None
        if failed:
            raise PeerFailed(self.key, answer)
        os.kill(pid, signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """End the process: it exits when the pipe closes, and is killed if it does not."""
        self._pipe.close()
        if self._process.is_alive():
            os.kill(self._process.pid or 0, signal.SIGCONT)
            self._process.join(5)
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def alternate(
    runs: Mapping[str, Callable[[], float]], rounds: int, left_out: dict[str, str] | None = None
) -> dict[str, list[float]]:
    """`common.alternate`, but a candidate that fails is reported and left out, and the others continue.

    The reason is added to ``left_out``.
    """
    left_out = {} if left_out is None else left_out

    def guarded(key: str) -> float:
        if key in left_out:
            return math.nan
        try:
            return runs[key]()
        except PeerFailed as error:
            left_out[key] = error.reason
            print(f"left out: {key}: {error.reason}", flush=True)
            return math.nan

    taken = common.alternate({key: (lambda k=key: guarded(k)) for key in runs}, rounds)
    return {key: seconds for key, seconds in taken.items() if key not in left_out}


def best_setting(
    worker: Worker, texts: list[str], settings: list[Setting]
) -> tuple[Setting, dict[str, float]]:
    """Find the fastest setting on `texts`; return it, and the sentences/s of each setting tried.

    Every setting runs once, and those close to the fastest three times more, alternating so that a slow spell of the
    machine does not decide. The best run of each counts. Of the sizes that hold all texts, only the smallest is tried,
    and several streams only with batches of which each stream gets two. Settings that fail, say for lack of memory, are
    reported and left out.

    Raises:
        PeerFailed: no setting works.
    """
    whole = min(
        (s.batch for s in settings if s.batch is not None and s.batch >= len(texts)), default=math.inf
    )
    settings = [
        s
        for s in settings
        if s.batch is None or (s.batch <= whole if s.streams == 1 else s.batch * s.streams <= len(texts) / 2)
    ]
    if len(settings) == 1:
        worker.load(settings[0].streams)
        return settings[0], {}
    seconds: dict[Setting, float] = {}
    failed: dict[Setting, PeerFailed] = {}
    loaded = 0

    def guarded(setting: Setting) -> float:
        nonlocal loaded
        if setting in failed:
            return math.inf
        try:
            if loaded != setting.streams:
                loaded = 0
                worker.load(setting.streams)
                worker.texts(texts)
                loaded = setting.streams
            return worker.run(setting.batch)
        except PeerFailed as error:
            without = [setting] if loaded else [s for s in settings if s.streams == setting.streams]
            failed.update(dict.fromkeys(without, error))
            print(f"{worker.key}: no batch {', '.join(map(str, without))}: {error.reason}", flush=True)
            loaded = 0
            return math.inf

    def attempt(which: list[Setting], rounds: int) -> None:
        for streams in sorted({s.streams for s in which}):
            runs = {s: (lambda s=s: guarded(s)) for s in which if s.streams == streams}
            for setting, taken in common.alternate(runs, rounds).items():
                seconds[setting] = min(*taken, seconds.get(setting, math.inf))

    attempt(settings, 1)
    close = [s for s in settings if seconds[s] < 1.5 * min(seconds.values())]
    attempt(close, 3)
    seconds = {s: taken for s, taken in seconds.items() if s not in failed}
    if not seconds:
        raise next(iter(failed.values()))
    best = min(seconds, key=lambda s: seconds[s])
    worker.load(best.streams)
    return best, {str(s): round(len(texts) / t, 1) for s, t in seconds.items()}


class _Server:
    """The worker's end."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self._texts: list[str] = []
        self._vectors = np.empty((0, 0), dtype=np.float32)

    def convert(self) -> None:
        self.peer.convert()

    def settings(self) -> list[Setting]:
        return self.peer.settings()

    def load(self, streams: int) -> float:
        start = time.perf_counter()
        self.peer.load(streams)
        taken = time.perf_counter() - start
        with contextlib.suppress(OSError):  # where the kernel allows it, the peak is counted from here on
            Path("/proc/self/clear_refs").write_text("5")
        return taken

    def texts(self, texts: list[str]) -> None:
        self._texts = texts

    def run(self, batch: int | None) -> float:
        start = time.perf_counter()
        self._vectors = self.peer.encode(self._texts, batch)
        return time.perf_counter() - start

    def alone(self, batch: int | None) -> float:
        return self.peer.encode_alone(self._texts, batch)

    def one_by_one(self) -> list[float]:
        taken = []
        for text in self._texts:
            start = time.perf_counter()
            self.peer.encode([text], 1)
            taken.append(time.perf_counter() - start)
        return taken

    def vectors(self) -> np.ndarray:
        return self._vectors

    def peak_mb(self) -> int:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return round(int(status["VmHWM"].split()[0]) * 1024 / 1e6)


def _serve(pipe: Connection, key: str, given: tuple[Path | None, int, Path], cpus: list[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends the workers
    # A stopped process does not see its pipe close: if the parent is killed, the kernel must end this one.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setaffinity(0, cpus)
    server = _Server(peer_class(key)(*given))
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, getattr(server, method)(*arguments)))
        except Exception:
            pipe.send((True, traceback.format_exc()))
