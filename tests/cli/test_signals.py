"""Whoever ends a command learns in one sentence what is kept and what to type; what a server says stays text."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from leverplus.cli.command import Bars, Outcome
from leverplus.cli.main import main
from leverplus.errors import LeverError, RecipeError, plain

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\rfoo\u202eoof\ud800[/bold]"


FIND = "leverplus.cli.main.find_command"


@pytest.fixture
def heard() -> Iterator[None]:
    """Signals as a terminal leaves them: whoever starts the tests behind `nohup` or in the background ignores some."""
    usual = {signal.SIGHUP: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    before = {
        number: signal.signal(number, handler) for number, handler in usual.items()
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)]
)
def test_a_signal_ends_with_one_sentence_and_the_usual_exit_code(
    name, code, capsys, monkeypatch
) -> None:
    before = signal.getsignal(signal.Signals[name])

    def run() -> Outcome:
        os.kill(os.getpid(), signal.Signals[name])
        signal.pause()
        return Outcome(None)

    monkeypatch.setattr(FIND, lambda _: run)
    assert main(["check"]) == code
    said = capsys.readouterr().err
    assert (
        f"stopped by {name}; everything measured so far is kept. Type the same command to go on."
        in said
    )
    assert said.count("lever:") == 1
    assert signal.getsignal(signal.Signals[name]) == before


def test_a_signal_that_is_ignored_stays_ignored(monkeypatch) -> None:
    """As `nohup` does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        def run() -> Outcome:
            os.kill(os.getpid(), signal.SIGHUP)
            return Outcome(None, code=7)

        monkeypatch.setattr(FIND, lambda _: run)
        assert main(["check"]) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_command_in_another_thread_leaves_signals_alone(monkeypatch) -> None:
    monkeypatch.setattr(FIND, lambda _: lambda: Outcome(None, code=5))
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["check"])))
    thread.start()
    thread.join()
    assert codes == [5]


def test_terminal_escapes_never_reach_the_terminal(capsys, monkeypatch) -> None:
    def run() -> Outcome:
        raise LeverError(f"the server says {HOSTILE}")

    monkeypatch.setattr(FIND, lambda _: run)
    assert main(["check"]) == 1
    bars = Bars()
    bars.say(HOSTILE)
    bars.live = True
    bars.say(HOSTILE)
    said = capsys.readouterr().err
    assert not set(said) & set("\x1b\x07\x9b\r\u202e\ud800")
    assert said.count("foo") == 3


def test_plain_text_is_left_as_it_is() -> None:
    kept = "Zürich 東京 🦊\n\tnext line"
    assert plain(kept) == kept
    assert str(RecipeError("a", ["b", "c"])) == "a: 2 problems\n  - b\n  - c"


@pytest.mark.usefixtures("heard")
def test_a_signal_while_the_command_is_still_being_loaded_ends_with_the_same_sentence(
    capsys, monkeypatch
) -> None:
    def load(_name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()

    monkeypatch.setattr(FIND, load)
    assert main(["check", "world"]) == 130
    assert "stopped by SIGINT" in capsys.readouterr().err
