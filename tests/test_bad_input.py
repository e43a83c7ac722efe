"""Files that are no history: one clear line each, whatever they hold; compressed ones by their content."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from sacct_rows import BERLIN, COLUMNS, read, record, text, write

from tias_slurm.errors import InputError
from tias_slurm.slurm import files
from tias_slurm.slurm.history import read_history, sniff

zstandard = pytest.importorskip("zstandard", reason="zstd needs tias-slurm[replay]")
CONTENT = text(*(record(JobID=str(i)) for i in range(1, 4))).encode()


def complaint(path: str, **options: object) -> str:
    """What read_history says of a file: one line that names it."""
    with pytest.raises(InputError) as caught:
        read_history([path], **{"zone": BERLIN, **options})  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    return message


@pytest.mark.parametrize("fold", [gzip.compress, lzma.compress, zstandard.compress])
def test_compressed_by_content_not_by_name(tmp_path: Path, fold: object) -> None:
    folded = fold(CONTENT)  # type: ignore[operator]
    assert len(read(tmp_path, folded).jobs) == 3
    assert len(read(tmp_path, folded + fold(CONTENT.split(b"\n", 1)[1].replace(b"\n1", b"\n9"))).jobs) >= 3  # type: ignore[operator]
    assert sniff(write(tmp_path / "x", folded)) == "sacct"
    message = complaint(write(tmp_path / "cut", folded[: len(folded) // 2]))
    assert "cut" in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"\n\n\n", "no header"),
        (b"hello", "no header"),
        (CONTENT.split(b"\n", 1)[0], "no jobs"),
        (CONTENT.split(b"\n", 1)[0] + b"\n", "no jobs"),
        (bytes(range(256)) * 40, "binary"),
        (b"PK\x03\x04 a zip", "binary"),
        (CONTENT.decode().encode("utf-16"), "UTF-16"),
        (gzip.compress(b"\x7fELF\x02"), "binary"),
        (b"\x1f\x8b\x08 not really gzip", "cannot be read"),
        (CONTENT.split(b"\n", 1)[1], "no header"),
        (b"Account JobID State Submit Start End AllocTRES\n------- ----- -----\n", "table for people"),
        (b"JobID|State\n1|COMPLETED\n", "lacks the columns Submit, Start, End, AllocTRES"),
        (b"JobID|" * 1_000_000, "first line without end"),
        (b"JobID|" * 500_000, "500001 columns"),
    ],
)
def test_what_is_no_history(tmp_path: Path, content: bytes, said: str) -> None:
    assert said in complaint(write(tmp_path / "x", content))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    assert "is a directory" in complaint(str(tmp_path))
    assert "does not exist" in complaint(str(tmp_path / "none"))
    assert "cannot be opened" in complaint("a\0b")
    with pytest.raises(InputError, match="named twice"):
        read_history([str(tmp_path)] * 2, zone=BERLIN)
    with pytest.raises(InputError, match="no input"):
        read_history([], zone=BERLIN)


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x", CONTENT)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything
    assert "no permission" in complaint(path)


def test_zip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FREE", 1 << 20)
    bomb = zlib.compressobj(9, wbits=31)
    folded = (
        bomb.compress(CONTENT) + b"".join(bomb.compress(b"1|" * 50_000) for _ in range(200)) + bomb.flush()
    )
    assert len(folded) < 100_000
    assert "unfolds to more than" in complaint(write(tmp_path / "x", folded))
    lines = CONTENT + b"1|x\n" * 5_000_000
    assert "unfolds to more than" in complaint(write(tmp_path / "y", zstandard.compress(lines)))


@pytest.mark.parametrize(
    "fold",
    [
        partial(gzip.compress, compresslevel=9),
        partial(lzma.compress, preset=0),
        zstandard.ZstdCompressor(level=1).compress,
    ],
)
def test_zip_bomb_of_short_lines_is_refused_before_a_line_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(files, "FREE", 1 << 23)
    path = write(tmp_path / "x", fold(CONTENT + b"a\n" * (6 << 20)))
    begun: list[bytes] = []
    with pytest.raises(InputError, match="unfolds to more than"):
        begun.extend(files.blocks(path))
    assert not begun
    # what is no bomb for its size alone is handed out whole
    small = CONTENT + b"a\n" * (3 << 20)
    assert b"".join(files.blocks(write(tmp_path / "y", fold(small)))) == small


def test_exports_of_the_same_days_in_one_file_are_no_bomb(tmp_path: Path) -> None:
    one = gzip.decompress((Path(__file__).parents[1] / "examples" / "cluster-export.txt.gz").read_bytes())
    many = zstandard.ZstdCompressor(level=19).compress(one * 100)
    assert 100 * len(one) > 2 * files.RATIO_GZIP * len(many)  # which zstd sees, gzip not
    path = write(tmp_path / "x", many)
    assert sum(map(len, files.blocks(path))) == 100 * len(one) > files.FREE


def test_absolute_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tias_slurm.slurm.sacct_json.MOST_BYTES", 1000)
    assert "holds more than" in complaint(write(tmp_path / "x", b'{"jobs": [' + b" " * 2000 + b"]}"))


def test_line_of_80_megabytes(tmp_path: Path) -> None:
    assert "first line" in complaint(write(tmp_path / "x", b"a" * (80 << 20)))
    long = record(JobID="9", Comment="x" * (80 << 20))
    work = read(tmp_path, text(record(JobID="1"), long, record(JobID="2")))
    assert work.jobs["job_id"].tolist() == ["1", "2"]
    assert [r.line for r in work.refused.examples] == [3]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("JobID,State", "lacks the columns Submit, Start, End, AllocTRES"),
        ("x", "names no columns"),
        (",", "names no columns"),
        ("JobID," * 5000, "has 5001 names"),
        ("JobID,,State", "an empty name at place 2"),
        ("JobID,%20,State", "an empty name at place 2"),
        ("JobID,State,", "an empty name at place 3"),
    ],
)
@pytest.mark.parametrize("header", [False, True])
def test_list_of_columns_that_does_not_fit(tmp_path: Path, columns: str, said: str, header: bool) -> None:
    content = CONTENT if header else CONTENT.split(b"\n", 1)[1]
    if header and columns == "JobID,State":
        said = "has a header of its own in line 1"
    assert said in complaint(write(tmp_path / "x", content), columns=columns)


@pytest.mark.parametrize("end", ["", "|"])
@pytest.mark.parametrize("last", ["sbatch run.sh", ""])
@pytest.mark.parametrize("change", [-2, -1, 1, 2])
def test_list_of_columns_with_some_names_too_few_or_too_many(
    tmp_path: Path, end: str, last: str, change: int
) -> None:
    names = [*COLUMNS, "ExitCode", "Layout"][: len(COLUMNS) + change]
    rows = [record(JobID=str(i), SubmitLine=last if i % 2 else "sbatch run.sh") for i in range(40)]
    lines = text(*rows, end=end).split("\n", 1)[1]
    path = write(tmp_path / "x", "cut off\n" + lines + text(record(), columns=tuple(names)).split("\n", 1)[1])
    if change == 1 and end:  # the delimiter at the end, which is then taken for one before an empty field
        assert len(read_history([path], zone=BERLIN, columns=",".join(names)).jobs) == 41
        return
    said = complaint(path, columns=",".join(names))
    assert f"--format names {len(names)} columns, its lines have others ({len(COLUMNS)} by '|')" in said


def test_list_of_columns_beside_a_header(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "a login message\n" + CONTENT.decode())
    agrees = ",".join(c.upper() for c in COLUMNS).replace("STATE", "State%30")
    work = read_history([path], zone=BERLIN, columns=agrees)
    assert len(work.jobs) == 3
    said = complaint(path, columns=agrees.replace("START,END", "END,START"))
    assert "has a header of its own in line 2, another than --format" in said
    assert "column 12 is 'start', in --format 'end'" in said
    said = complaint(path, columns=agrees.removesuffix(",SUBMITLINE"))
    assert f"{len(COLUMNS)} columns, --format names {len(COLUMNS) - 1}" in said


@pytest.mark.parametrize("delimiter", ["", "\n", ";"])
def test_delimiter_that_does_not_fit(tmp_path: Path, delimiter: str) -> None:
    assert "delimiter" in complaint(write(tmp_path / "x", CONTENT), delimiter=delimiter)


def test_odd_file_name_stays_on_one_line(tmp_path: Path) -> None:
    assert "\\n" in complaint(str(tmp_path / "a\nb\x1b[31m"))


def test_files_that_all_hold_nothing_name_the_reasons(tmp_path: Path) -> None:
    message = complaint(
        write(tmp_path / "x", text(record(State="PENDING"), record(JobID="2", End="2020-01-01T00:00:00")))
    )
    assert "1 pending" in message
    assert "1 refused (ends before its start)" in message


@pytest.mark.parametrize("fold", [bytes, gzip.compress])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, fold: object) -> None:
    class Stdin:
        buffer = io.BytesIO(fold(CONTENT))  # type: ignore[operator]

    monkeypatch.setattr(sys, "stdin", Stdin)
    assert sniff("-") == "sacct"
    seen: list[int] = []
    assert len(read_history(["-"], zone=BERLIN, progress=seen.append).jobs) == 3
    assert sum(seen) == len(fold(CONTENT))  # type: ignore[operator]


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="needs /dev/stdin")
def test_pipe_that_is_looked_at_first() -> None:
    code = (
        "from zoneinfo import ZoneInfo; from tias_slurm.slurm.history import read_history, sniff\n"
        "print(sniff('/dev/stdin'), len(read_history(['/dev/stdin'], zone=ZoneInfo('UTC')).jobs))"
    )
    many = text(*(record(JobID=str(i)) for i in range(1, 2001))).encode()
    done = subprocess.run(
        [sys.executable, "-c", code], input=many, capture_output=True, check=True, env=os.environ
    )
    assert done.stdout.split() == [b"sacct", b"2000"]


def test_progress_counts_the_bytes_of_all_files(tmp_path: Path) -> None:
    seen: list[int] = []
    other = text(record(JobID="77")).encode()
    read(tmp_path, CONTENT, gzip.compress(other), progress=seen.append)
    assert sum(seen) == len(CONTENT) + len(gzip.compress(other))
