"""Files of a dry run: whole or not there at all, readable by owner and group only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tias_slurm.errors import InputError

DIR_MODE = 0o750  # the files name users and jobs
FILE_MODE = 0o640


def _refuse(path: Path, error: OSError) -> InputError:
    why = error.strerror or str(error)
    return InputError(f"{path}: cannot be written: {why}; name another directory with --out")


def prepare_dir(path: Path) -> Path:
    """Make the output directory. An existing one keeps its mode. InputError if that cannot be."""
    try:
        path.mkdir(mode=DIR_MODE, parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError(f"{path}: is no directory; name another with --out") from None
    except OSError as e:
        raise _refuse(path, e) from None
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new empty file beside path, renamed to path at a good end and removed at a bad one.

    A reader sees the old file or the whole new one. OSError inside becomes a one-line InputError.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    made = False
    try:
        os.close(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
        made = True
        yield temp
        temp.replace(path)
    except OSError as e:
        raise _refuse(path, e) from None
    finally:
        if made:
            with suppress(OSError):
                temp.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text whole. What UTF-8 cannot hold is written as an escape."""
    with replacing(path) as temp:
        temp.write_bytes(text.encode("utf-8", "backslashreplace"))


def need_extra(module: str) -> InputError:
    """The error for an optional package that is missing."""
    return InputError(
        f"the dry run needs {module}, which is not installed (the packages leave it out); tias-slurm[replay] "
        "brings it, in an environment: in a checkout, python3 -m venv /opt/tias-slurm && "
        "/opt/tias-slurm/bin/pip install '.[replay]' (docs/install.md)"
    )
