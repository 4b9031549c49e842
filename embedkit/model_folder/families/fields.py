"""Readers of the fields of ``config.json`` that several families have, and refusals of what the core lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..architectures import CoreConfig

__all__ = [
    "SILU",
    "Config",
    "flag",
    "head_size",
    "integer",
    "local_layers",
    "number",
    "refuse",
    "rope",
    "two_ropes",
]

Config = Mapping[str, Any]
SILU = {"silu": "silu", "swiglu": "silu", "geglu": "gelu"}


def number(raw: Config, key: str, where: str, default: float | None = None) -> float:
    """A positive number of ``config.json``."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise ValueError(
            f"{where}: {key} must be a positive number, not {value!r:.80}. Fetch the file again."
        )
    return float(value)


def rotary_base(raw: Config, key: str, where: str, default: float) -> float:
    """The base of rotary positions, 1 or more: the core takes 0 for none, and tiny values would round to 0."""
    value = number(raw, key, where, default)
    if value < 1:
        raise ValueError(f"{where}: {key} is {value:g}; a rotary base is 1 or more. Fetch the file again.")
    return value


def integer(raw: Config, key: str, where: str, least: int, default: int | None = None) -> int:
    """An integer of ``config.json``, ``least`` or more."""
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
        raise ValueError(
            f"{where}: {key} must be an integer from {least}, not {value!r:.80}. Fetch the file again."
        )
    return value


def flag(raw: Config, key: str, where: str, default: bool) -> bool:
    """A boolean of ``config.json``."""
    value = raw.get(key, default)
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {key} must be true or false, not {value!r:.80}")
    return value


def rope(raw: Config, config: CoreConfig, where: str, theta: float, name: str = "rope") -> None:
    """The speeds of rotary positions from ``rope_scaling`` or ``rope_parameters`` (transformers 5).

    The older key takes precedence, as in transformers.

    Raises:
        ValueError: the type of scaling is none that the core computes; names it.
    """
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        raise ValueError(f"{where}: {name} must be an object, not {scaling!r:.80}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    known = {"rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings"}
    unknown = set(scaling) - known - ({"low_freq_factor", "high_freq_factor"} if kind == "llama3" else set())
    odd = sorted(key for key in unknown if scaling[key] not in (None, 1, 1.0))
    if odd:
        raise ValueError(
            f"{where}: {name} has {odd[0]!r:.80} {scaling[odd[0]]!r:.80}, which embedkit does not compute"
        )
    base = rotary_base(scaling, "rope_theta", where, theta)
    if kind in (None, "default"):
        config["rotary_base"] = base
        return
    factor = number(scaling, "factor", where)
    width = head_size(config)
    if kind == "linear":
        config.update(rotary_base=base, rotary_divisor=factor)
    elif kind == "ntk":  # of Alibaba's models; equations 6 of Su's "NTK-RoPE mixed"
        config.update(rotary_base=base * factor, rotary_divisor=factor ** (2 / width))
    elif kind == "dynamic":
        trained = int(config["max_position_embeddings"])
        refuse(scaling, where, {"original_max_position_embeddings": (None, trained)})
        config.update(rotary_base=base, rotary_stretch=factor, rotary_trained=trained)
        # As far as the models that use it were tried: nomic-embed-text, 2,048 to 8,192.
        config["max_position_embeddings"] = max(int(config["max_position_embeddings"]), 4 * trained)
    elif kind == "llama3":
        trained = integer(scaling, "original_max_position_embeddings", where, 1)
        low, high = (number(scaling, f"{end}_freq_factor", where) for end in ("low", "high"))
        if low >= high:
            raise ValueError(
                f"{where}: {name} has low_freq_factor {low} and high_freq_factor {high}; the former must be the smaller"
            )
        config.update(rotary_base=base, rotary_divisor=factor)
        config.update(rotary_short_wave=trained / high, rotary_long_wave=trained / low)
    else:
        raise ValueError(
            f"{where}: {name} type {kind!r:.80} is not supported; embedkit computes default, linear, ntk, dynamic and "
            "llama3"
        )


def head_size(config: CoreConfig) -> int:
    """Features of a head."""
    return int(config.get("head_size", 0)) or int(config["hidden_size"]) // int(config["num_attention_heads"])


def refuse(raw: Config, where: str, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse values that change the result and that the core does not compute."""
    for key, values in wanted.items():
        value = raw.get(key, values[0])
        if value not in values:
            raise ValueError(
                f"{where}: {key} is {value!r:.80}; embedkit supports only {values[0]!r} for this model. "
                "Use another model, or sentence-transformers for this one."
            )


def local_layers(raw: Config, config: CoreConfig, where: str, default: list[bool]) -> str:
    """Which layers attend locally: ``layer_types``, or the pattern."""
    types = raw.get("layer_types")
    if types is None:
        return "".join("1" if local else "0" for local in default)
    known = {"sliding_attention": "1", "full_attention": "0"}
    if not isinstance(types, list) or len(types) != config["num_hidden_layers"]:
        raise ValueError(
            f"{where}: layer_types must name {config['num_hidden_layers']} layers, not {types!r:.80}"
        )
    for name in types:
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"{where}: unknown layer type {name!r:.80}; expected one of {', '.join(known)}")
    return "".join(known[name] for name in types)


def two_ropes(raw: Config, config: CoreConfig, where: str, keys: tuple[str, str], theta: float) -> None:
    """The speeds of a model whose local layers turn faster: ``rope_parameters`` of both kinds, or two keys.

    Files written during the transition have both; what ``rope_parameters`` lacks is in the keys.
    """
    refuse(raw, where, {"rope_scaling": (None, {})})  # which scales one kind of layers or both, by the model
    both = raw.get("rope_parameters")
    base, local = (
        rotary_base(raw, key, where, value) for key, value in zip(keys, (theta, 10000.0), strict=True)
    )
    if not isinstance(both, dict):
        config.update(rotary_base=base, rotary_local_base=local)
        return
    unknown = sorted(set(both) - {"full_attention", "sliding_attention"})
    if unknown:
        raise ValueError(f"{where}: rope_parameters has {unknown[0]!r:.80}, which embedkit does not compute")
    rope({"rope_parameters": both.get("sliding_attention")}, config, where, local, "rope_parameters")
    if set(config) & {"rotary_divisor", "rotary_trained"}:
        raise ValueError(f"{where}: rope_parameters scale the local layers, which embedkit does not compute")
    config["rotary_local_base"] = config["rotary_base"]
    rope({"rope_parameters": both.get("full_attention")}, config, where, base, "rope_parameters")
