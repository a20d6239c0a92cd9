"""The parser of `lever`: what is misspelt is named, with what was probably meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class LeverParser(argparse.ArgumentParser):
    """Parses one command; wrong usage is a sentence that names the mistake, under the usage of that command."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        if self._subparsers is not None or args is None:
            return super().parse_known_args(args, namespace)
        self._refuse_unknown_options(args)  # before what is missing: a misspelt option is the reason why it is
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"not understood: {' '.join(rest)}; `{self.prog} --help` lists what can be written")
        return found, rest

    def _refuse_unknown_options(self, words: Sequence[str]) -> None:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            if word.startswith("--") and " " not in word and not any(option.startswith(name) for option in known):
                self.error(f"there is no option {name}; {self._meant(name, known)}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            what = str(action.metavar).lower()
            self.error(f"there is no {what} '{value}'; {self._meant(str(value), action.choices)}")
        super()._check_value(action, value)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        if action.type is float and arg_string.endswith("%"):
            try:
                share = float(arg_string[:-1]) / 100
            except ValueError:
                return super()._get_value(action, arg_string)
            raise argparse.ArgumentError(action, f"'{arg_string}' is not a number; write {share:g}")
        return super()._get_value(action, arg_string)

    def _meant(self, written: str, known: Iterable[str]) -> str:
        near = get_close_matches(written, list(known), n=1)
        return f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists all"
