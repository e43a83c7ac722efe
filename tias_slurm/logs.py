"""Logging: structlog to standard error, JSON lines for machines or coloured lines for people."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Literal

import structlog
from structlog.types import EventDict, WrappedLogger

from tias_slurm.errors import printable


def _safe(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Text from users is data: no control character of theirs reaches a terminal."""
    return {k: printable(v, 500) if isinstance(v, str) and k != "exception" else v for k, v in event.items()}


# priorities of syslog(3), which journald takes from the head of a line (sd-daemon(3))
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}


def _to_journal() -> bool:
    """Whether standard error is the stream that systemd gave us, see systemd.exec(5), $JOURNAL_STREAM."""
    try:
        at = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{at.st_dev}:{at.st_ino}"


def _with_priority(render: Any) -> Any:
    """Every line of what `render` makes begins with its priority."""

    def rendered(logger: WrappedLogger, name: str, event: EventDict) -> str:
        mark = f"<{_PRIORITY.get(str(event.get('level', name)), 6)}>"
        return "\n".join(f"{mark}{line}" for line in str(render(logger, name, event)).splitlines())

    return rendered


def setup(form: Literal["json", "console"], level: str) -> Any:
    """Configure logging for this process; the logger."""
    render: Any = structlog.processors.JSONRenderer(sort_keys=False)
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    journal = _to_journal()
    if journal:
        render = _with_priority(render)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _safe,
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    mark = f"<{_PRIORITY['error']}>" if journal else ""
    # the scheduler's own words are of use only when they are bad news
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format=f"{mark}%(name)s: %(message)s")
    return structlog.get_logger("tias-slurm")
