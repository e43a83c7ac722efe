#!/usr/bin/env python3
"""Write completions of tias-slurm for bash, zsh and fish. They start no program and ask nobody.

Usage: contrib/completions/generate.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "man"))
from command_tree import PROGRAM, Command, Parameter, commands

HEAD = "# Made by contrib/completions/generate.py: change the source, not this.\n"


def takes_files(command: Command) -> bool:
    """Whether a command's arguments are files; all others are job ids, which nobody is asked for."""
    return any(a.value.startswith("EXPORT") for a in command.arguments)


def bash() -> str:
    """For bash, with or without bash-completion."""
    root, *others = commands()
    lines = [
        HEAD,
        "_tias_slurm() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= i",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi",
        "    done",
        "    COMPREPLY=()",
        "    case $command:$before in",
    ]
    for one in others:
        for option in one.options:
            if option.value:
                lines.append(f"        {one.name}:{'|'.join(option.names)}) {_bash_value(option)} ;;")
    lines += ["    esac", "    local words= files=", "    case $command in"]
    lines.append(f"        '') words='{' '.join([*_options(root), *(one.name for one in others)])}' ;;")
    for one in others:
        files = " files=1" if takes_files(one) else ""
        lines.append(f"        {one.name}) words='{' '.join(_options(one))}'{files} ;;")
    lines += [
        "    esac",
        "    if [[ $files && $word != -* ]]; then compopt -o filenames 2>/dev/null; "
        'mapfile -t COMPREPLY < <(compgen -f -- "$word"); return; fi',
        "    if [[ $command && $word != -* ]]; then return; fi",
        '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")',
        "}",
        f"complete -F _tias_slurm {PROGRAM}",
    ]
    return "\n".join(lines) + "\n"


def _bash_value(option: Parameter) -> str:
    if option.offers in (("FILE",), ("DIR",)):
        flag = "-f" if option.offers == ("FILE",) else "-d"
        return (
            f'compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen {flag} -- "$word"); return'
        )
    if option.offers:
        return f"mapfile -t COMPREPLY < <(compgen -W '{' '.join(option.offers)}' -- \"$word\"); return"
    return "return"


def _options(command: Command) -> list[str]:
    return [name for option in command.options for name in option.names]


def zsh() -> str:
    """For zsh."""
    root, *others = commands()
    lines = [
        f"#compdef {PROGRAM}",
        HEAD,
        "_tias-slurm() {",
        "  local context state line",
        "  local -a subcommands",
    ]
    lines.append("  subcommands=(")
    lines += [f"    {_quoted(one.name + ':' + one.summary)}" for one in others]
    lines += ["  )", "  _arguments -C \\"]
    lines += [f"    {_zsh_option(option)} \\" for option in root.options]
    lines += ["    '1:command:->command' '*::argument:->arguments'", "  case $state in"]
    lines += [
        "    command) _describe -t commands 'command' subcommands ;;",
        "    arguments)",
        "      case $words[1] in",
    ]
    for one in others:
        lines.append(f"        {one.name})")
        lines.append("          _arguments \\")
        lines += [f"            {_zsh_option(option)} \\" for option in one.options]
        rest = (
            "'*:export:_files'"
            if takes_files(one)
            else f"'1:{_zsh_title(one)}: '"
            if one.arguments
            else "'*: : '"
        )
        lines += [f"            {rest}", "          ;;"]
    lines += ["      esac ;;", "  esac", "}", ""]
    # read as a file of its functions zsh calls it, sourced it is only made known
    lines += ['if [[ $funcstack[1] == _tias-slurm ]]; then _tias-slurm "$@"']
    lines += [f"else compdef _tias-slurm {PROGRAM}; fi"]
    return "\n".join(lines) + "\n"


def _zsh_title(command: Command) -> str:
    return command.arguments[0].value.lower()


def _zsh_option(option: Parameter) -> str:
    text = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
    value = ""
    if option.value:
        offers = {("FILE",): "_files", ("DIR",): "_files -/"}.get(
            option.offers
        ) or f"({' '.join(option.offers)})"
        value = f":{option.value.lower()}:{offers if option.offers else ' '}"
    return _quoted(f"{option.names[0]}[{text}]{value}")


def _quoted(text: str) -> str:
    """For zsh, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


def fish() -> str:
    """For fish."""
    root, *others = commands()
    names = " ".join(one.name for one in others)
    lines = [HEAD, f"complete -c {PROGRAM} -f"]
    none = f"not __fish_seen_subcommand_from {names}"
    lines += [_fish_option(option, none) for option in root.options]
    lines += [
        f"complete -c {PROGRAM} -n {_fish(none)} -a {one.name} -d {_fish(one.summary)}" for one in others
    ]
    for one in others:
        seen = f"__fish_seen_subcommand_from {one.name}"
        lines += [_fish_option(option, seen) for option in one.options]
        if takes_files(one):
            lines.append(f"complete -c {PROGRAM} -n {_fish(seen)} -F")
    return "\n".join(lines) + "\n"


def _fish_option(option: Parameter, condition: str) -> str:
    value = ""
    if option.value:
        value = " -r -F" if option.offers and option.offers[0] in {"FILE", "DIR"} else " -x"
        if value == " -x" and option.offers:
            value += f" -a {_fish(' '.join(option.offers))}"
    return (
        f"complete -c {PROGRAM} -n {_fish(condition)} -l {option.names[0][2:]}{value} -d {_fish(option.help)}"
    )


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def completions() -> dict[str, str]:
    """Each shell's text, by the name that its shell looks for."""
    return {f"{PROGRAM}.bash": bash(), f"_{PROGRAM}": zsh(), f"{PROGRAM}.fish": fish()}


def main() -> None:
    """Write the files."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, text in completions().items():
        Path(sys.argv[1], name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
