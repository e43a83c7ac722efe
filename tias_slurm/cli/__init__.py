"""The command `tias-slurm`: one module a command, and here how every one of them ends."""

from __future__ import annotations

import io
import os
import signal
import sys
from types import FrameType

# ending one of these must still remove half-written files; the exit code is 128 + the signal's number
_SIGNALS = tuple(s for n in ("SIGINT", "SIGTERM", "SIGHUP") if (s := getattr(signal, n, None)) is not None)


def main() -> None:
    """Run the command and exit: what is wrong with the input is one line on standard error and code 2.

    The commands are imported in here, so that a Ctrl-C meanwhile ends as quietly as a later one.
    """
    stopped = _end_on_signals()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a terminal of Latin-1 has no dagger, which is no reason to fail
            stream.reconfigure(errors="replace")
    message = ""
    try:
        from tias_slurm.cli.app import run

        code = run()
        sys.stdout.flush()
    except BaseException as error:
        code, message = (1, "") if stopped else _explain(error)
        if isinstance(error, OSError):
            # what is still in the buffer of standard output cannot be written either
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if stopped:
        # whatever the libraries made of the interrupt: an exit code, an error of compiled code
        code, message = 128 + stopped[0], "interrupted"
    _say(message)
    sys.exit(code)


def _end_on_signals() -> list[int]:
    """Raise KeyboardInterrupt on the signals that end a program; the list then holds the signal."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        # who ignores a signal (nohup, a shell for its background jobs) has to go on ignoring it
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    return stopped


def _explain(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and what to say of it; '' if that is said already."""
    from tias_slurm.errors import InputError, LedgerError
    from tias_slurm.slurm.live import AdapterError

    if isinstance(error, SystemExit):
        return (error.code, "") if isinstance(error.code, int) else (1 if error.code else 0, "")
    if isinstance(error, LedgerError):
        return 1, str(error)  # another try may do better
    if isinstance(error, InputError):
        return 2, str(error)
    if isinstance(error, AdapterError):
        return 1, str(error)
    if hasattr(error, "format_message"):
        return 2, _usage(error)
    if isinstance(error, BrokenPipeError):
        return 1, ""  # the reader of our output is gone (head, less): nothing is left to say to it
    if isinstance(error, MemoryError):
        return 1, "out of memory; give fewer files or a machine with more of it"
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    # a fault of ours, or of the machine: one line for the user, the whole story for whoever mends it
    if os.environ.get("TIAS_SLURM_DEBUG"):
        raise error
    if isinstance(error, ModuleNotFoundError):
        return (
            1,
            f"the Python package {error.name} is missing: install tias-slurm again (in a checkout: make)",
        )
    if isinstance(error, OSError):
        return 1, f"cannot go on: {error.strerror or error} (TIAS_SLURM_DEBUG=1 shows where)"
    what = str(error).splitlines()[0] if str(error) else ""
    return 1, f"internal error: {type(error).__name__}: {what} (TIAS_SLURM_DEBUG=1 shows where)"


def _usage(error: BaseException) -> str:
    """An error of the command line in one line, with where to look; '' after help was shown instead."""
    message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    if not message and context is not None:
        print(context.get_help(), file=sys.stderr)
        return ""
    command = context.command_path if context is not None else "tias-slurm"
    return f"{message.rstrip('.')}; see {command} --help"


def _say(message: str) -> None:
    if not message:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, soft_wrap=True)
    for line in message.splitlines():
        console.print(Text("tias-slurm: error: ", style="bold red") + Text(line))
