"""``Router`` modules of sentence-transformers: a model whose queries and documents take different ways through it.

``router_config.json`` names the modules of each route, in folders beside it, and the route of texts without a task. A
route is a Transformer and a Pooling, or a StaticEmbedding, then Dense and Normalize; the modules after the Router in
``modules.json`` follow on every route.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .json_file import present, read_json
from .modules import check_route, module_folder, module_kind, without_dropout

__all__ = ["ROUTER_FILE", "Routing", "read_routing"]

ROUTER_FILE = "router_config.json"
_OLD_FILE = "config.json"  # of the Asym module, which Router was before sentence-transformers 5


@dataclass(frozen=True)
class Routing:
    """The routes of a model.

    Attributes:
        path: the file that names them.
        entries: route -> its modules, as `modules.module_entries` lists them.
        default: the route of texts without a task; None if they must have one.
        mappings: (task, modality) -> route; None stands for any.
    """

    path: Path
    entries: Mapping[str, list[tuple[str, Path]]]
    default: str | None
    mappings: Mapping[tuple[str | None, Any], str]

    @property
    def first(self) -> str:
        """The route whose settings stand for the model's."""
        return self.default or next(iter(self.entries))

    def route(self, task: str | None) -> str:
        """The route of texts of a task.

        Raises:
            ValueError: there is none.
        """
        for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
        for name in (task, "text"):
            if name in self.entries:
                return str(name)
        if task is not None:
            raise ValueError(
                f"no route for task={task!r:.80}; this model has {', '.join(map(repr, self.entries))}"
            )
        if self.default is None:
            raise ValueError(
                f"this model has no default route: give task=, one of {', '.join(map(repr, self.entries))}"
            )
        return self.default


def read_routing(folder: Path, after: list[tuple[str, Path]]) -> Routing:
    """Read the routes of a Router.

    Args:
        folder: that of the Router, which no path may leave.
        after: the modules after it.

    Raises:
        FileNotFoundError: the file with the routes is missing.
        ValueError: it is damaged, or a route has modules that embedkit does not run.
    """
    path = folder / ROUTER_FILE
    if not present(path):
        path = folder / _OLD_FILE
    if not present(path):
        raise FileNotFoundError(f"{folder / ROUTER_FILE} is missing; fetch the model again")
    content = read_json(path)
    types, structure, parameters = (content.get(key, {}) for key in ("types", "structure", "parameters"))
    if not all(isinstance(value, dict) for value in (types, structure, parameters)) or not structure:
        raise ValueError(
            f"{path}: expected objects of types, structure and parameters. Fetch the file again."
        )
    entries: dict[str, list[tuple[str, Path]]] = {}
    for route, names in structure.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError(
                f"{path}: the route {route!r:.80} must be a list of modules. Fetch the file again."
            )
        modules = [(module_kind(types.get(name), path), module_folder(folder, name, path)) for name in names]
        entries[route] = [*without_dropout(modules), *after]
        check_route(entries[route], path)
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(entries))
    if default is not None and not (isinstance(default, str) and default in entries):
        raise ValueError(f"{path}: default_route {default!r:.80} is none of the routes {', '.join(entries)}")
    return Routing(path, entries, default, _mappings(parameters.get("route_mappings"), entries, path))


def _mappings(value: Any, routes: Mapping[str, Any], path: Path) -> dict[tuple[str | None, Any], str]:
    """``route_mappings``, whose keys are pairs of (task, modality) written as Python writes them."""
    result: dict[tuple[str | None, Any], str] = {}
    if not isinstance(value or {}, dict):
        raise ValueError(f"{path}: route_mappings must be an object, not {value!r:.80}")
    for key, route in (value or {}).items():
        try:
            task, modality = ast.literal_eval(key)
            hash((task, modality))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise ValueError(
                f"{path}: route_mappings has the key {key!r:.80}, no pair of task and modality"
            ) from None
        if not (isinstance(route, str) and route in routes):
            raise ValueError(f"{path}: route_mappings names the route {route!r:.80}, which there is not")
        result[task, modality] = route
    return result
