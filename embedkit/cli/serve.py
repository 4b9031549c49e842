"""``embedkit-serve``: an HTTP server of embeddings, reranking and search."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
from collections.abc import Sequence

from .. import __version__
from ..arguments import CUDA_PRECISIONS, check_positive, check_threads
from .common import (
    EXIT_OK,
    TASKS,
    Parser,
    add_prompts,
    byte_size,
    complain,
    given,
    given_path,
    integer,
    prompts_of_models,
    run,
    show,
    warn_of_prompts,
)
from .terminal import printable

_PROGRAM = "embedkit-serve"
_LAST_PORT = 65535
_REMEDIES = {
    ("texts", "length"): "--on-overflow error refuses them",
    ("texts", "script"): "use a multilingual model for them: --model {multilingual}",
}
_EPILOG = """\
examples:
  embedkit-serve                                             # the built-in model on http://127.0.0.1:8080
  embedkit-serve --model BAAI/bge-small-en-v1.5 --rerank my-cross-encoder --index my-index
  embedkit-serve --model small=FOLDER --model large=OTHER --max-memory 2GB

Routes: /v1/embeddings, /v1/models, /v1/search, /rerank, /embed, /info, /health, /livez, /metrics; / is a search page
with --index, /docs describes the API. Keys are also read from EMBEDKIT_API_KEY, separated by commas.

exit codes: 0 stopped by a signal after finishing its requests, 1 failed while running, 2 wrong usage or input, 130
interrupted by Ctrl-C and 143 ended by SIGTERM before it serves
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``embedkit-serve`` with ``argv`` (default: the process' arguments) and return its exit code."""
    return run(
        _PROGRAM,
        lambda: _parser().parse_args(argv),
        usage=(FileNotFoundError, ValueError),
        failed=(ImportError, OSError, RuntimeError),
        remedies=_REMEDIES,
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="embedkit-serve",
        description="Serve embeddings, reranking and search over HTTP, with the API of OpenAI, Cohere and Text "
        "Embeddings Inference.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=_serve)
    parser.add_argument("--version", action="version", version=f"embedkit-serve {__version__}")
    what = parser.add_argument_group("what is served")
    what.add_argument(
        "--model",
        action="append",
        default=[],
        type=given,
        metavar="[NAME=]MODEL",
        help="model folder or Hub id, and the name that requests give; repeatable (default: the built-in model)",
    )
    add_prompts(
        what,
        "; once for all models, or once for each --model. Requests ask for it with input_type. A search has those of "
        "its index",
        action="append",
    )
    what.add_argument(
        "--rerank",
        action="append",
        default=[],
        type=given,
        metavar="[NAME=]MODEL",
        help="cross-encoder; repeatable",
    )
    what.add_argument(
        "--index", type=given, metavar="INDEX", help="index folder, for /v1/search and the search page"
    )
    what.add_argument(
        "--precision",
        choices=CUDA_PRECISIONS,
        default="auto",
        help="of the models; fp16 and fp8 on CUDA only (default: auto, each model's own; an index's model has the "
        "index's)",
    )
    what.add_argument(
        "--device",
        default="auto",
        help='of the models, an index\'s too: "cpu", "cuda", "cuda:1"; rerankers and the search itself run on the CPU '
        "(default: cpu)",
    )
    what.add_argument(
        "--threads", type=integer(check_threads), metavar="N", help="threads of each model (default: all)"
    )
    what.add_argument(
        "--max-memory",
        type=byte_size,
        metavar="SIZE",
        help="of all models' weights; models beyond it are loaded when asked for, in place of the least recently "
        "used (default: no bound)",
    )
    what.add_argument(
        "--on-overflow",
        choices=("truncate", "error"),
        default="truncate",
        help="what to do with texts (or pairs) longer than the model (or reranker) can read (default: truncate); "
        "search queries and reranked hits are always truncated",
    )
    where = parser.add_argument_group("who may use it")
    where.add_argument(
        "--host", type=given, default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    where.add_argument("--port", type=_port, default=8080, help="0 for any free one (default: 8080)")
    where.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that requests must carry; repeatable",
    )
    where.add_argument(
        "--api-key-file",
        type=given_path,
        metavar="FILE",
        help="file with one key per line; unlike --api-key, not visible in process lists",
    )
    where.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        type=_origin,
        metavar="ORIGIN",
        help="web origin whose pages may call it, such as https://app.example, * for any; repeatable",
    )
    where.add_argument(
        "--allow-host",
        action="append",
        default=[],
        type=_host,
        metavar="NAME",
        help="name that the Host header may have, whatever the port, * for any; repeatable (default on loopback "
        "without a key: localhost, and what --host names)",
    )
    _add_limits(parser)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    from ..serve.settings import Limits

    limits = Limits()
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--max-body",
        type=byte_size,
        default=limits.body,
        metavar="SIZE",
        help="of a request (default: 16MiB)",
    )
    counts = {
        "texts": ("texts of a request", limits.texts),
        "queue": ("requests that may wait for a model", limits.queue_requests),
        "queue-tokens": (
            "tokens that may wait for a model, of which one request counts as a quarter at most",
            limits.queue_tokens,
        ),
        "batch-tokens": ("tokens of a batch", limits.batch_tokens),
        "connections": ("connections at once", limits.connections),
    }
    for name, (meaning, default) in counts.items():
        group.add_argument(
            f"--max-{name}",
            type=integer(lambda value: check_positive("the limit", value)),
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default:,})",
        )
    seconds = {
        "timeout": ("until a request is answered with 504", limits.timeout),
        "drain": ("for requests to finish after SIGTERM", 30.0),
        "keep-alive": ("that an idle connection stays open", limits.keep_alive),
        "header-timeout": ("for a client to send the head of a request", limits.header_timeout),
        "body-timeout": ("for a client to send a body, or to read an answer", limits.body_timeout),
    }
    for name, (meaning, value) in seconds.items():
        group.add_argument(
            f"--{name}",
            type=_seconds,
            default=value,
            metavar="SECONDS",
            help=f"{meaning} (default: {value:g})",
        )
    group.add_argument(
        "--log-level",
        choices=("error", "warning", "info", "debug"),
        default="warning",
        help="(default: warning)",
    )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _LAST_PORT:
        raise argparse.ArgumentTypeError(f"invalid port: {text!r}; expected a number from 0 to {_LAST_PORT}")
    return int(text)


def _origin(text: str) -> str:
    from ..serve.settings import web_origin

    try:
        return web_origin(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host(text: str) -> str:
    from ..serve.settings import host_name

    return host_name(given(text))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"invalid number of seconds: {text!r}")
    return value


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from ..encoder import prompt_of
        from ..serve.opening import Options, open_state
        from ..serve.server import is_local
        from ..serve.server import run as serve
        from ..serve.settings import Limits, Settings, host_name
    except ImportError as error:
        raise ImportError(f"{error}: the server needs pip install 'embedkit[serve]'") from error
    if arguments.index is not None and not arguments.model:
        for task in TASKS:
            if getattr(arguments, f"{task}_prompt"):
                raise ValueError(
                    f"--{task}-prompt: the model of {arguments.index} has the prompts that the index was built with; "
                    f"leave --{task}-prompt out, or name a model to serve with it with --model"
                )
    # without models, the index's own or else the built-in one is served
    prompts = prompts_of_models(arguments, len(arguments.model) or int(arguments.index is None))
    keys = _keys(arguments)
    bound = _bound(arguments.host, arguments.port)
    local, (host, port) = is_local(bound), bound[0].getsockname()[:2]
    hosts = tuple(arguments.allow_host)
    if not hosts and not keys and local:
        hosts = ("localhost", "127.0.0.1", "[::1]", host_name(arguments.host), host_name(host))
    settings = Settings(
        limits=Limits(
            body=arguments.max_body,
            texts=arguments.max_texts,
            queue_requests=arguments.max_queue,
            queue_tokens=arguments.max_queue_tokens,
            batch_tokens=arguments.max_batch_tokens,
            timeout=arguments.timeout,
            header_timeout=arguments.header_timeout,
            body_timeout=arguments.body_timeout,
            keep_alive=arguments.keep_alive,
            connections=arguments.max_connections,
        ),
        api_keys=keys,
        on_overflow=arguments.on_overflow,
        origins=tuple(arguments.allow_origin),
        hosts=() if "*" in hosts else hosts,
    )
    with contextlib.ExitStack() as stack:
        for one in bound:
            stack.enter_context(contextlib.closing(one))
        state = open_state(
            Options(
                models=arguments.model,
                prompts=prompts,
                rerankers=arguments.rerank,
                index=arguments.index,
                precision=arguments.precision,
                device=arguments.device,
                threads=arguments.threads,
                max_memory=arguments.max_memory,
                settings=settings,
            )
        )
        if arguments.model:
            told: dict[str, str] = {task: "" for task in TASKS if getattr(arguments, f"{task}_prompt")}
            for served in state.embedders.distinct:
                if served.loaded is not None:
                    encoder = served.loaded.encoder
                    warn_of_prompts(
                        served.loaded.about["model"],
                        {task: prompt_of(encoder, task) for task in TASKS},
                        told,
                    )
        shown = f"[{host}]" if ":" in host else host
        models = ", ".join([*state.embedders.models, *state.rerankers.models])

        def ready() -> None:
            show(f"embedkit-serve: {printable(models)} on http://{shown}:{port}")
            if not keys and not local:
                complain(f"warning: anyone who reaches {shown}:{port} may use it; see --api-key", _PROGRAM)

        serve(state, bound, ready=ready, drain=arguments.drain, log_level=arguments.log_level)
    return EXIT_OK


def _bound(host: str, port: int) -> list[socket.socket]:
    from ..serve.server import bind

    try:
        return bind(host, port)
    except (socket.gaierror, UnicodeError):  # a UnicodeError for what cannot be a name at all
        raise ValueError(
            f"--host {host}: no such host; give an address of this machine, e.g. 127.0.0.1 or 0.0.0.0"
        ) from None
    except OSError as error:
        raise OSError(f"--host {host} --port {port}: {error.strerror}") from None


def _keys(arguments: argparse.Namespace) -> tuple[str, ...]:
    given = [("--api-key", key) for key in arguments.api_key]
    variable = os.environ.get("EMBEDKIT_API_KEY")
    given += [("EMBEDKIT_API_KEY", key) for key in (variable or "").split(",")]
    file = arguments.api_key_file
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except OSError as error:
            raise ValueError(f"--api-key-file {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"--api-key-file {file}: it is not UTF-8; write a key a line") from None
        given += [(f"--api-key-file {file}, line {number}", line) for number, line in enumerate(lines, 1)]
    keys = {key.strip(): source for source, key in given if key.strip()}
    for key, source in keys.items():  # the key itself is not told: messages end in logs
        if not (key.isascii() and key.isprintable()):
            raise ValueError(
                f"{source}: the key holds a character that clients cannot send in a header; use printable ASCII"
            )
    if (arguments.api_key or file or variable is not None) and not keys:
        raise ValueError(
            "no API key was given: --api-key, the file of --api-key-file or EMBEDKIT_API_KEY is empty; leave them out "
            "(unset EMBEDKIT_API_KEY) to ask for none"
        )
    return tuple(keys)
