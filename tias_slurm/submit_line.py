"""What a submit line (sacct's SubmitLine) says of one option: --comment."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Final

MAX_CHARS: Final = 1_000_000

# Options of sbatch, salloc and srun that take no value, or take one only after "=". All others, unless
# written with "=", take the next word.
_ALONE: Final = frozenset(
    (
        *("contiguous", "disable-status", "exact", "exclusive", "get-user-env", "help", "hold", "ignore-pbs"),
        *("immediate", "kill-command", "label", "multi-prog", "nice", "no-allocate", "no-bell", "no-kill"),
        *("no-requeue", "no-shell", "overcommit", "overlap", "oversubscribe", "parsable", "preserve-env"),
        *("propagate", "pty", "quiet", "quit-on-interrupt", "reboot", "requeue", "resv-ports", "share"),
        *("spread-job", "stepmgr", "test-only", "unbuffered", "usage", "use-min-nodes", "verbose", "version"),
        *("wait", "x11"),
    )
)
_ALONE_SHORT: Final = frozenset("hHIkKlOQsuvVWXZE")


def comment_of(line: str, belongs: Callable[[str, str], bool]) -> str | None:
    """The value of the last --comment before the script; None without one. Never raises.

    A submit line is the words of the command joined by blanks: Slurm does not keep the quotes, so a value
    can go on in the words that follow. `belongs(value so far, next word)` says whether it does. What
    follows the script's name belongs to the script.
    """
    if "--comment" not in line or len(line) > MAX_CHARS:
        return None
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is never closed
        words = line.split()
    found: str | None = None
    wrapped = False  # with --wrap there is no script, and the wrapped command's words may stand here
    at = 1  # the command itself
    while at < len(words):
        word = words[at]
        at += 1
        if word == "--" or not word.startswith("-") or word == "-":
            if not wrapped:
                break
            continue
        name, equals, value = word.partition("=")
        wrapped |= name == "--wrap"
        if wrapped and found is not None:
            break
        if name == "--comment":
            if not equals:
                value = words[at] if at < len(words) else ""
                at += 1
            while at < len(words) and belongs(value, words[at]):
                value += " " + words[at]
                at += 1
            found = value
        elif word.startswith("--"):
            at += not equals and name[2:] not in _ALONE
        elif len(word) == 2:
            at += word[1] not in _ALONE_SHORT
    return found
