"""Logging: structlog to standard error, JSON lines for machines or coloured lines for people."""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog
from structlog.types import EventDict, WrappedLogger

from tias_slurm.errors import printable


def _safe(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Text from users is data: no control character of theirs reaches a terminal."""
    return {k: printable(v, 500) if isinstance(v, str) and k != "exception" else v for k, v in event.items()}


def setup(form: Literal["json", "console"], level: str) -> Any:
    """Configure logging for this process; the logger."""
    render: Any = structlog.processors.JSONRenderer(sort_keys=False)
    if form == "console":
        render = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
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
    # the scheduler's own words are of use only when they are bad news
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(name)s: %(message)s")
    return structlog.get_logger("tias-slurm")
