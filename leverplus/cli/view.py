"""`lever view`: a local web page over a folder of runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from leverplus.errors import LeverError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("runs"), metavar="DIR", help="a folder of runs (default runs)"
    )
    parser.add_argument("--port", type=int, default=8765, metavar="N", help="the port (default 8765; 0: any free one)")
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="H", help="the address to listen on (default 127.0.0.1: this machine)"
    )
    parser.add_argument("--json", action="store_true", help="say in one JSON object where it listens")


def run(args: argparse.Namespace) -> int:
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise LeverError("the page needs a web server; type `pip install 'leverplus[serve]'`") from error
    from leverplus.view.app import create_view
    from leverplus.view.connections import KEEP_ALIVE_SECONDS, PatientProtocol, listen
    from leverplus.view.guard import LOOPBACK

    app = create_view(args.folder, args.host)
    config = uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        http=PatientProtocol,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        log_level="warning",
        ws="none",
        server_header=False,
    )
    listening = listen(args.host, args.port)
    port = listening.getsockname()[1]
    name = f"[{args.host}]" if ":" in args.host else args.host
    if args.json:
        facts = {"url": f"http://{name}:{port}", "folder": str(args.folder), "pid": os.getpid()}
        print(json.dumps(facts), flush=True)
    else:
        print(f"http://{name}:{port}/ shows the runs in {args.folder}; stop with Ctrl-C", flush=True)
    if args.host not in LOOPBACK:
        print("Everyone who can reach this address can see them and ask the model.", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=[listening])
    return 0
