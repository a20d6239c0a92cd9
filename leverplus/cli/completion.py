"""`lever completion`: a script that lets a shell complete commands, options and files."""

from __future__ import annotations

import argparse
import json
from typing import Any

BASH = """_lever() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then words="{commands}"
  else case "$command" in
{cases}
  esac; fi
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "${{words// /$IFS}}" -- "$word"))
  case "$word" in -*) ;; *) [ "$COMP_CWORD" -gt 1 ] && COMPREPLY+=($(compgen -f -- "$word")) ;; esac
}}
complete -o filenames -F _lever lever
"""
ZSH = """#compdef lever
_lever() {{
  if (( CURRENT == 2 )); then local -a commands; commands=({described}); _describe command commands; return; fi
  case "$words[2]" in
{cases}
  esac
  _files
}}
compdef _lever lever
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help='use it: eval "$(lever completion bash)"')
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(args: argparse.Namespace) -> int:
    script = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]()
    print(json.dumps({"shell": args.shell, "script": script}) + "\n" if args.json else script, end="")
    return 0


def options_of(command: str) -> dict[str, list[str]]:
    """The options of a command with those of its verbs; verbs are the keys, "" is the command itself."""
    from leverplus.cli.main import command_module

    parser = argparse.ArgumentParser(prog=f"lever {command}", add_help=True)
    command_module(command).add_arguments(parser)
    return _options(parser)


def _options(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"": []}
    for action in parser._actions:
        found[""] += [option for option in action.option_strings if option.startswith("--")]
        verbs: Any = action.choices if isinstance(action, argparse._SubParsersAction) else {}
        for name, verb in verbs.items():
            found[name] = _options(verb)[""]
    return found


def _words(command: str) -> str:
    options = options_of(command)
    every = [*(verb for verb in options if verb), *(option for own in options.values() for option in own)]
    return " ".join(dict.fromkeys(every))


def bash() -> str:
    from leverplus.cli.main import COMMANDS

    cases = "\n".join(f'    {name}) words="{_words(name)}" ;;' for name in COMMANDS)
    return BASH.format(commands=" ".join(COMMANDS), cases=cases)


def zsh() -> str:
    from leverplus.cli.main import COMMANDS

    described = " ".join(_quoted(f"{name}:{line}") for name, line in COMMANDS.items())
    cases = "\n".join(f"    {name}) compadd -- {_words(name)} ;;" for name in COMMANDS)
    return ZSH.format(described=described, cases=cases)


def fish() -> str:
    from leverplus.cli.main import COMMANDS

    lines = [
        f"complete -c lever -n __fish_use_subcommand -f -a {name} -d {_quoted(line)}" for name, line in COMMANDS.items()
    ]
    for name in COMMANDS:
        for verb, options in options_of(name).items():
            seen = f"'__fish_seen_subcommand_from {name}'"
            if verb:
                lines.append(f"complete -c lever -n {seen} -a {verb}")
            lines += [f"complete -c lever -n {seen} -l {option.removeprefix('--')}" for option in options]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
