"""Loading a script of benchmarks/ as a module, so that tests can call its parts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    """benchmarks/NAME.py; known under that name, because its dataclasses and processes look it up."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(
            0, str(FOLDER)
        )  # as when the script is run: it may import its neighbours
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
