"""The engine that runs an ONNX graph of a model folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..model_folder.folder import Stamp, open_folder
from ..model_folder.json_file import present
from .onnx import OnnxStage
from .onnx_files import PRECISIONS, GraphFile, find_graph, graph_files, graph_hash
from .onnx_session import CPU, ON_GPU, Provider, check_providers, provider_names
from .stage_engine import StageEngine

__all__ = ["OnnxEngine", "OnnxOptions"]


@dataclass(frozen=True)
class OnnxOptions:
    """How a graph is opened; checked as far as possible without the folder, and picklable.

    Attributes:
        providers: execution providers of ONNX Runtime, in order of preference.
        onnx_file: the graph in the folder; None for the only one, or ``model.onnx``.
        precision: the precision that the graph must have, or ``"auto"``.
    """

    providers: tuple[Provider, ...]
    onnx_file: str | None = None
    precision: str = "auto"

    @classmethod
    def checked(cls, device: Any, precision: Any, providers: Any, onnx_file: Any) -> tuple[OnnxOptions, str]:
        """The options, and the device they select: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, …

        Raises:
            ImportError: onnxruntime is not installed.
            TypeError: an argument has the wrong type.
            ValueError: an argument is invalid, or this ONNX Runtime does not support it.
        """
        if precision not in ("auto", *PRECISIONS):
            raise ValueError(
                f"unknown precision={precision!r}; expected one of {', '.join(map(repr, ('auto', *PRECISIONS)))}"
            )
        if onnx_file is not None and not isinstance(onnx_file, str):
            raise TypeError(f"onnx_file must be a str, not {type(onnx_file).__name__}")
        name = "cpu" if device is None or str(device) == "auto" else str(device)
        kind, colon, number = name.partition(":")
        if kind not in ("cpu", "cuda") or (colon and not (kind == "cuda" and number.isdecimal())):
            raise ValueError(
                f'unknown device={device!r}; backend="onnx" expects "auto", "cpu", "cuda" or "cuda:1"'
            )
        asked = check_providers(providers, name)
        if providers is not None and provider_names(asked)[0] != CPU and device in (None, "auto"):
            name = provider_names(asked)[0].removesuffix("ExecutionProvider").lower()
        if providers is not None and name == "cpu" and provider_names(asked)[0] in ON_GPU:
            raise ValueError(
                f"device={device!r} and providers={provider_names(asked)} contradict each other; give one of the two"
            )
        return cls(tuple(asked), onnx_file, precision), name


class OnnxEngine(StageEngine):
    """An ONNX graph of a model folder."""

    def __init__(self, path: Path, options: OnnxOptions, threads: int) -> None:
        """Read the folder and open the graph, to run each operation on ``threads`` threads.

        Raises:
            FileNotFoundError: the folder, a file of it or the graph is missing.
            ValueError: a file is broken or does not fit the others, or the graph has another precision.
        """
        folder = open_folder(path, graph=True)
        self.graph: GraphFile = find_graph(folder, options.onnx_file)
        if options.precision not in ("auto", self.graph.precision):
            raise ValueError(
                f"precision={options.precision!r}: {self.graph.path} is {self.graph.precision}; choose another "
                "graph with onnx_file=, or export one with embedkit-model export --precision"
            )
        ranges = self.graph.ranges if self.graph.own else folder.stamp.ranges
        folder = replace(
            folder.with_files(graph_files(self.graph.path)),
            precision=self.graph.precision,
            stamp=Stamp(self.graph.fingerprint, ranges=ranges),
        )

        def open_stage() -> OnnxStage:
            return OnnxStage(
                folder,
                self.graph,
                described=present(folder.path / "modules.json"),
                providers=options.providers,
                threads=threads,
                pad_id=self.tokenizer.pad_id,
            )

        super().__init__(folder, open_stage)
        if self.stage.dimension != folder.dimension:
            self.folder = replace(folder, graph_dimension=self.stage.dimension)

    def fingerprint(self) -> str:
        """The exported model's; for a graph that embedkit did not write, computed from its bytes."""
        from ..model_folder.fingerprint import fingerprint

        if self.graph.fingerprint is not None:
            return self.graph.fingerprint
        return fingerprint(self.folder, graph_hash(self.graph.path), self.settings)

    def verify(self) -> None:
        """Compare every file of the folder with the hashes written by the export."""
        self.graph.verify(self.folder.path)
