#!/usr/bin/env python3
"""Write tias-slurm.1 and tias-slurm-config.5 from the command line's own help and the settings' own schema.

Usage: contrib/man/generate.py DIRECTORY
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from command_tree import PROGRAM, Command, Parameter, commands

import tias_slurm
from tias_slurm.config import DEFAULT_PATH, Config, known_keys

FILES = {
    DEFAULT_PATH: "the settings; tias-slurm-config(5)",
    "/var/lib/tias-slurm/ledger.sqlite": "what is remembered of each job, and every write",
    "/var/lib/tias-slurm/paused": "while it is there nothing is written: tias-slurm pause",
    "/var/lib/tias-slurm/status.json": "the last cycle, as tias-slurm status shows it",
}
EXIT_STATUS = {
    "0": "done",
    "1": "something inside failed, or as the command says",
    "2": "the input, the settings or the command line cannot be used; one line on standard error says why",
    "3": "explain and history: no such job; report: no record of that time",
}


def escaped(text: str) -> str:
    """Text as roff takes it: no sign of it is an order."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = text.replace("^", "\\(ha").replace("~", "\\(ti")
    return "\n".join("\\&" + line if line.startswith((".", "\\(aq")) else line for line in text.split("\n"))


def prose(text: str) -> list[str]:
    """Running text in lines of its source."""
    lines = textwrap.wrap(" ".join(text.split()), 76, break_long_words=False, break_on_hyphens=False)
    return [escaped(line) for line in lines]


def page(name: str, section: int, what: str, body: list[str]) -> str:
    """A whole page."""
    head = [
        '.\\" Made by contrib/man/generate.py: change the source, not this.',
        f'.TH {name.upper().replace("-", chr(92) + "-")} {section} "" "{PROGRAM} {tias_slurm.__version__}"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(what)}",
    ]
    return "\n".join([*head, *body]) + "\n"


def paragraphs(text: tuple[str, ...]) -> list[str]:
    """Paragraphs of help; what is indented, or an example, as it stands."""
    lines: list[str] = []
    for part in text:
        example = re.match(r"Example: (tias-slurm .*)", part, re.DOTALL)
        code = example[1] if example else textwrap.dedent(part) if part.startswith(" ") else ""
        if code:
            lines += [".PP", ".RS 4", ".EX", escaped(code), ".EE", ".RE"]
        else:
            lines += [".PP", *prose(part)]
    return lines


def sentence(text: str) -> str:
    return text if not text or text.endswith((".", ")", "?")) else text + "."


def parameter(one: Parameter) -> list[str]:
    names = ", ".join(f"\\fB{escaped(name)}\\fR" for name in one.names)
    tag = names if one.names[0].startswith("-") else f"\\fI{escaped(one.value)}\\fR"
    if one.value and one.names[0].startswith("-"):
        tag += f" \\fI{escaped(one.value)}\\fR"
    text = sentence(one.help) + (f" Default: {one.default}." if one.default else "")
    return [".TP", tag, *prose(text)]


def command(one: Command) -> list[str]:
    """A command's part of the page."""
    use = [f"\\fB{escaped(PROGRAM)} {escaped(one.name)}\\fR [\\fIoptions\\fR]"]
    use += [
        f"[\\fI{escaped(a.value)}\\fR]" if a.optional else f"\\fI{escaped(a.value)}\\fR"
        for a in one.arguments
    ]
    lines = [f".SS {escaped(one.name)}", " ".join(use), *paragraphs(one.text)]
    for each in (*one.arguments, *one.options):
        if each.names != ("--help",):
            lines += parameter(each)
    return lines


def program_page() -> str:
    """tias-slurm.1"""
    root, *others = commands()
    body = [
        ".SH SYNOPSIS",
        f"\\fB{escaped(PROGRAM)}\\fR \\fIcommand\\fR [\\fIoptions\\fR] [\\fIarguments\\fR]",
        ".SH DESCRIPTION",
        *prose(root.text[0]),
        *prose(
            "The daemon looks at the queue once a cycle and writes one field of waiting jobs that stand "
            'elsewhere than they should; as long as the settings do not say mode = "enforce" it only says '
            "what it would write."
        ),
        ".SH OPTIONS",
        *(line for each in root.options for line in parameter(each)),
        ".SH COMMANDS",
        *(line for one in others for line in command(one)),
        ".SH EXIT STATUS",
        *(line for code, text in EXIT_STATUS.items() for line in (".TP", f"\\fB{code}\\fR", *prose(text))),
        ".SH FILES",
        *(line for file, text in FILES.items() for line in (".TP", f"\\fI{escaped(file)}\\fR", *prose(text))),
        ".SH SEE ALSO",
        ".BR tias\\-slurm\\-config (5),",
        ".BR sbatch (1),",
        ".BR scontrol (1),",
        ".BR sacctmgr (1)",
    ]
    return page(PROGRAM, 1, root.text[0].rstrip("."), body)


def kind(schema: dict[str, Any]) -> str:
    """What a value may be, in words, from its JSON schema."""
    if "enum" in schema:
        return "one of " + ", ".join(f'"{v}"' for v in schema["enum"])
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "anyOf" in schema:
        return kind(next(s for s in schema["anyOf"] if s.get("type") != "null"))
    words = {
        "integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text",
        "array": "a list", "object": "a table of numbers by name",
    }[schema["type"]]  # fmt: skip
    if schema["type"] == "array":
        items = schema.get("items", {})
        words += " of texts" if items.get("type") == "string" else " of numbers"
    ends = {"minimum": "of at least", "exclusiveMinimum": "above", "maximum": "at most"}
    limits = [f"{word} {schema[end]:.15g}" for end, word in ends.items() if end in schema]
    return " ".join([words, " and ".join(limits)]).strip()


def toml(value: object) -> str:
    """A default as one writes it in the file."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, int | float):
        return f"{value:.15g}"
    return "{}" if isinstance(value, dict) else "[" + ", ".join(map(toml, value)) + "]"  # type: ignore[call-overload]


def settings_page() -> str:
    """tias-slurm-config.5"""
    body = [
        ".SH SYNOPSIS",
        f"\\fI{escaped(DEFAULT_PATH)}\\fR",
        ".SH DESCRIPTION",
        *prose(
            "One file in TOML. Every setting has a default and may be left out; an unknown one is an error. "
            "Names ending in _s are seconds, in _gpu_s GPU-seconds. tias-slurm check-config checks a file, "
            "tias-slurm show-config shows what holds and why. On SIGHUP the daemon reads the file again; one "
            "that cannot be used is refused as a whole and the old settings hold."
        ),
    ]
    shown = ""
    for key, description in known_keys().items():
        section, name = key.split(".")
        model: Any = Config.model_fields[section].annotation
        if section != shown:
            title = (model.__doc__ or "").split("\n\n")[0]
            body += [f".SH [{section}]", *prose(title)]
            shown = section
        default = model.model_fields[name].default
        of = kind(model.model_json_schema()["properties"][name])
        usual = "unset" if default is None else toml(default)
        text = f"{description}. {of[0].upper()}{of[1:]}; default: {usual}."
        if not text.split()[0].endswith(":"):  # which is a value
            text = text[0].upper() + text[1:]
        body += [".TP", f"\\fB{escaped(name)}\\fR", *prose(text)]
    body += [
        ".SH EXAMPLES",
        "Act on one partition only:",
        *(".PP", ".RS 4", ".EX", "[daemon]", 'mode = "enforce"', "", "[scope]"),
        *(escaped('only_partitions = ["gpu-a"]'), ".EE", ".RE"),
        ".SH SEE ALSO",
        ".BR tias\\-slurm (1)",
    ]
    return page(f"{PROGRAM}-config", 5, "settings of tias-slurm", body)


def pages() -> dict[str, str]:
    """Each page's text by its file's name."""
    return {f"{PROGRAM}.1": program_page(), f"{PROGRAM}-config.5": settings_page()}


def main() -> None:
    """Write the pages."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, text in pages().items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
