"""The settings for commands that have to work while the settings file is broken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tias_slurm.config import Config


def load_in_use(config: str | None, overrides: Mapping[str, object] | None = None) -> Config:
    """Those of the file; if that is broken, those that the daemon has in use, and a warning on standard
    error. Raises InputError."""
    from rich.console import Console
    from rich.text import Text

    from tias_slurm.in_use import settings

    found, warning = settings(config, overrides)
    if warning:
        console = Console(stderr=True, soft_wrap=True)
        console.print(Text("tias-slurm: warning: ", style="bold yellow") + Text(warning))
    return found
