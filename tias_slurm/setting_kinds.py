"""Kinds of values in the settings file, and what is wrong with those that are none. Messages end the sentence
"KEY: ..." of a ConfigError."""

from __future__ import annotations

import ipaddress
import signal
from typing import Annotated
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def comment_key(value: object) -> object:
    """The key of a comment. Raises ValueError for another text."""
    if isinstance(value, str) and not (
        value.isascii() and value.replace("_", "a").replace("-", "a").isalnum()
    ):
        raise ValueError("must be made of letters, digits, '-' and '_'")
    if isinstance(value, str) and value.lower() in {"requeue", "checkpoint"}:
        raise ValueError("is a key with a meaning of its own; choose another")
    return value


def signal_name(value: object) -> object:
    """A signal, without SIG. Raises ValueError for another text."""
    if isinstance(value, str) and f"SIG{value}" not in signal.Signals.__members__:
        raise ValueError("is no signal that this machine knows (write TERM, USR1, ...)")
    return value


def absolute(value: object) -> object:
    """A path of a program, or nothing. Raises ValueError for another text."""
    if isinstance(value, str) and value and not value.startswith("/"):
        raise ValueError("must be an absolute path, without arguments")
    return value


def listen_address(value: object) -> object:
    """ADDRESS:PORT, or nothing. Raises ValueError for another text."""
    if isinstance(value, str) and value:
        host, colon, port = value.rpartition(":")
        try:
            ipaddress.ip_address(host.strip("[]"))
            good = bool(colon) and (":" in host) == host.startswith("[") and 0 <= int(port) < 2**16
        except ValueError:
            good = False
        if not good:
            raise ValueError("must be an IP address and a port (127.0.0.1:9418, [::1]:9418)")
    return value


def zone_name(value: object) -> object:
    """An IANA zone, or nothing. Raises ValueError for another text."""
    if isinstance(value, str) and value:
        try:
            ZoneInfo(value)
        except (KeyError, ValueError, OSError):
            raise ValueError("is no IANA time zone that this machine knows (such as Europe/Berlin)") from None
    return value


Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_tuple)]
Thresholds = Annotated[tuple[Annotated[float, Field(gt=0)], ...], BeforeValidator(_tuple)]


def _pairs(value: object) -> object:
    return tuple(_tuple(v) for v in value) if isinstance(value, list) else value


Loss = Annotated[float, Field(ge=0, lt=1000)]
Level = Annotated[int, Field(ge=0, le=33)]
Caps = Annotated[tuple[tuple[Loss, Level], ...], BeforeValidator(_pairs)]
Shares = dict[str, Annotated[float, Field(gt=0, le=1)]]


def _by_type(value: object) -> object:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, dict):  # TOML takes 1g.5gb for a key within a key
                at = next(iter(inner), "")
                raise ValueError(f'needs quotes around a type with a dot: "{name}.{at}" = ...')
    return value


Weights = Annotated[dict[str, Annotated[float, Field(gt=0, le=1000)]], BeforeValidator(_by_type)]


class Section(BaseModel):
    """What all sections share: no unknown keys, no silent conversions, no changes once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
