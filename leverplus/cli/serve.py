"""`lever serve`: a bundle as an HTTP service, and as a proxy in front of an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import json
import os
import sys

from leverplus.errors import LeverError, WrongUsage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", metavar="BUNDLE", help="a bundle, a run folder, or hf://ORG/NAME")
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="listen on this address (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8766, metavar="N", help="the port (default 8766; 0: any free one)")
    parser.add_argument("--name", action="append", default=[], metavar="HOST", help="also answer to this host name")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that answer (default 1)")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of each process (default 2)")
    parser.add_argument("--read-only", action="store_true", help="refuse to add and delete demonstrations")
    parser.add_argument("--json", action="store_true", help="once it listens, print where as one JSON object")
    parser.add_argument("--no-log", action="store_true", help="do not log requests to the error output")
    limits = parser.add_argument_group("limits, for each process")
    limits.add_argument(
        "--queue", type=int, default=64, metavar="N", help="the most requests that may wait (default 64)"
    )
    limits.add_argument("--seconds", type=float, default=10.0, metavar="S", help="time limit of a request (default 10)")
    limits.add_argument("--body-mb", type=float, default=20.0, metavar="MB", help="largest request (default 20)")
    limits.add_argument(
        "--memory-mb", type=float, default=256.0, metavar="MB", help="memory for all requests under way (default 256)"
    )
    limits.add_argument("--megapixels", type=float, default=16.0, metavar="MP", help="largest picture (default 16)")
    limits.add_argument(
        "--connections", type=int, default=512, metavar="N", help="the most connections at a time (default 512)"
    )
    limits.add_argument(
        "--grace", type=int, default=30, metavar="S", help="time to finish requests after SIGTERM (default 30)"
    )
    proxy = parser.add_argument_group("proxy")
    proxy.add_argument(
        "--upstream",
        default="",
        metavar="URL",
        help="an OpenAI-compatible server: pass /v1/* on to it, and add demonstrations to chats",
    )
    proxy.add_argument(
        "-k", "--shots", type=int, metavar="N", help="demonstrations to add to a chat (default: as recommended)"
    )
    proxy.add_argument(
        "--deadline-ms",
        type=int,
        default=1000,
        metavar="MS",
        help="if choosing takes longer, pass the chat on unchanged (default 1000)",
    )
    proxy.add_argument(
        "--upstream-seconds",
        type=float,
        default=600.0,
        metavar="S",
        help="how long the upstream may send nothing (default 600)",
    )


def run(args: argparse.Namespace) -> int:
    # before NumPy and torch are imported, here and in the workers: threads of ours share the cores already
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        import fastapi  # noqa: F401
        import httpcore  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise LeverError("the service needs a web server; type `pip install 'leverplus[serve]'`") from error
    from leverplus.serve.server import serve
    from leverplus.serve.settings import ServeSettings
    from leverplus.view.connections import listen

    _check(args)
    settings = ServeSettings(
        bundle=args.bundle, host=args.host, names=tuple(args.name), upstream=args.upstream, shots=args.shots,
        deadline_ms=args.deadline_ms, upstream_seconds=args.upstream_seconds, seconds=args.seconds,
        threads=args.threads, queue=args.queue, workers=args.workers, body_mb=args.body_mb, memory_mb=args.memory_mb,
        megapixels=args.megapixels, connections=args.connections, read_only=args.read_only, log=not args.no_log,
    )  # fmt: skip
    listening = listen(args.host, args.port)
    name = f"[{args.host}]" if ":" in args.host else args.host
    address = f"http://{name}:{listening.getsockname()[1]}"
    also = f", and passes {address}/v1 on to {args.upstream}" if args.upstream else ""

    def ready() -> None:
        if args.json:
            facts = {"url": address, "bundle": args.bundle, "upstream": args.upstream or None, "pid": os.getpid()}
            print(json.dumps(facts), flush=True)
            return
        print(f"{address}/ serves {args.bundle}{also}; stop with Ctrl-C", flush=True)

    try:
        serve(settings, listening, args.grace, ready)
    except KeyboardInterrupt:  # SIGTERM and SIGINT arrive here after the requests under way are answered
        pass
    finally:
        listening.close()
    print("lever: stopped; requests under way were finished", file=sys.stderr)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Wrong values before anything is loaded."""
    least = {"workers": 1, "threads": 1, "queue": 0, "connections": 1, "grace": 0, "deadline_ms": 1}
    for key, value in least.items():
        if getattr(args, key) < value:
            raise WrongUsage(f"--{key.replace('_', '-')} {getattr(args, key)}: must be at least {value}")
    for key in ("seconds", "body_mb", "memory_mb", "megapixels", "upstream_seconds"):
        if not 0 < getattr(args, key) < 1e9:
            raise WrongUsage(f"--{key.replace('_', '-')} {getattr(args, key)}: must be more than 0")
    if args.shots is not None and args.shots < 0:
        raise WrongUsage(f"--shots {args.shots}: must be at least 0")
    if args.shots is not None and not args.upstream:
        raise WrongUsage("--shots belongs to --upstream; clients of the JSON API say how many they want")
