# ruff: noqa: INP001 - a script beside what it writes, no package
"""Writes the completions for bash, zsh and fish beside this file, from the parsers of the commands themselves.

`make completions`. They are static: completing costs no start of Python, and needs nothing at run time.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_supervisor.cli.main import COMMANDS, PROGRAM, parser_of
from vllm_supervisor.config.schema import KEYS, Shape
from vllm_supervisor.domain.diagnosis import CLASSES

MADE = f"made by etc/completions/generate.py from the parsers of {PROGRAM}; `make completions` writes it anew"
_SIMULATE = "simulate"  # takes vLLM's own flags
_FILES = frozenset({"FILE", "PATH"})
_FOLDERS = frozenset({"DIR"})
_WORDS = {
    "CLASS": tuple(sorted(CLASSES)),
    "KEY=VALUE": tuple(f"{'.'.join(key)}=" for key, known in KEYS.items() if key and known.shape is not Shape.SECTION),
}


@dataclass(frozen=True, slots=True)
class Takes:
    """What may stand where a value is expected. None of all three: something that cannot be guessed."""

    words: tuple[str, ...] = ()
    files: bool = False
    folders: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command; `takes` is None for a switch."""

    flags: tuple[str, ...]
    help: str
    takes: Takes | None


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the options that it has beside those of all, and its positional argument if it has one."""

    name: str
    help: str
    options: tuple[Option, ...]
    positional: Takes | None


def read_parsers() -> tuple[tuple[Option, ...], tuple[Command, ...]]:
    """Return the options that stand before or after any command, and the commands."""
    listed = {name: tuple(_options(name)) for name in COMMANDS if name != _SIMULATE}
    first, *others = listed.values()
    shared = tuple(option for option in first if all(option in options for options in others))
    known = []
    for name, (_, summary) in COMMANDS.items():
        if name == _SIMULATE:
            known.append(Command(name, summary, (), Takes(("serve",))))
            continue
        own = tuple(option for option in listed[name] if option not in shared)
        positional = [_takes(action) for action in _actions(name) if not action.option_strings]
        known.append(Command(name, summary, own, positional[0] if positional else None))
    return shared, tuple(known)


def _actions(name: str) -> list[argparse.Action]:
    return parser_of(name)._actions  # noqa: SLF001 - argparse has no other way to list them


def _options(name: str) -> Iterator[Option]:
    for action in _actions(name):
        if action.option_strings:
            yield Option(tuple(action.option_strings), _said(action), _takes(action))


def _said(action: argparse.Action) -> str:
    return " ".join((action.help or "").split())


def _takes(action: argparse.Action) -> Takes | None:
    if action.nargs == 0:
        return None
    kind = action.metavar if isinstance(action.metavar, str) else ""
    words = tuple(str(choice) for choice in action.choices or ()) or _WORDS.get(kind, ())
    return Takes(words, kind in _FILES, kind in _FOLDERS)


def _valued(options: tuple[Option, ...]) -> Iterator[tuple[Option, Takes]]:
    for option in options:
        if option.takes is not None:
            yield option, option.takes


# --- bash


def bash(shared: tuple[Option, ...], known: tuple[Command, ...]) -> str:
    """Return the completion for bash. It needs no bash-completion package beside it."""
    skip = "|".join(flag for option, _ in _valued(shared) for flag in option.flags)
    lines = [
        f"# {MADE}",
        "",
        "_vllm_supervisor() {",
        "    local words=() word before command at=1",
        "    # readline also splits at the = of --set KEY=VALUE: what stands before the cursor is looked at instead.",
        '    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"',
        '    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")',
        "    word=${words[-1]}",
        "    before=${words[-2]-}",
        "    while ((at < ${#words[@]} - 1)); do",
        "        case ${words[at]} in",
        f"            {skip}) ((at += 2)) ;;",
        "            -*) ((at += 1)) ;;",
        "            *) command=${words[at]}; break ;;",
        "        esac",
        "    done",
        "    COMPREPLY=()",
        '    case "${command-} $before" in',
    ]
    for option, takes in _valued(shared):
        lines.append(f"        {_bash_case('*', option.flags)}) {_bash_values(takes)}; return ;;")
    for command in known:
        for option, takes in _valued(command.options):
            lines.append(f"        {_bash_case(command.name, option.flags)}) {_bash_values(takes)}; return ;;")
    lines += ["    esac", '    case "${command-}" in']
    names = " ".join(command.name for command in known)
    lines.append(f'        "") {_bash_words(names + " " + _flags(shared))} ;;')
    for command in known:
        rest = f"; [[ $word == -* ]] || {{ {_bash_values(command.positional)}; }}" if command.positional else ""
        lines.append(f"        {command.name}) {_bash_words(_flags((*shared, *command.options)))}{rest} ;;")
    lines += ["    esac", "}", "", f"complete -F _vllm_supervisor {PROGRAM}", ""]
    return "\n".join(lines)


def _flags(options: tuple[Option, ...]) -> str:
    return " ".join(flag for option in options for flag in option.flags)


def _bash_case(command: str, flags: tuple[str, ...]) -> str:
    return "|".join(f'{command}" {flag}"' for flag in flags)


def _bash_words(words: str) -> str:
    return f'mapfile -t COMPREPLY < <(compgen -W "{words}" -- "$word")'


def _bash_values(takes: Takes) -> str:
    if takes.words:
        unfinished = takes.words[0].endswith("=")
        return _bash_words(" ".join(takes.words)) + ("; compopt -o nospace 2>/dev/null" if unfinished else "")
    if takes.files or takes.folders:
        kind = "-d" if takes.folders else "-f"
        option = "; compopt -o filenames 2>/dev/null"
        return f'mapfile -t COMPREPLY < <(compgen {kind} -- "$word"){option}'
    return ":"


# --- zsh


def zsh(shared: tuple[Option, ...], known: tuple[Command, ...]) -> str:
    """Return the completion for zsh."""
    lines = [
        f"#compdef {PROGRAM}",
        f"# {MADE}",
        "",
        "local -a commands shared",
        "local state",
        "commands=(",
        *(f"  {_quoted(command.name + ':' + command.help)}" for command in known),
        ")",
        "",
        "shared=(",
        *(f"  {spec}" for option in shared for spec in _zsh_option(option)),
        ")",
        "",
        "_arguments -C $shared '1: :->command' '*:: :->arguments'",
        "",
        "case $state in",
        "  command) _describe command commands ;;",
        "  arguments)",
        "    case $words[1] in",
    ]
    for command in known:
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        if command.positional is not None:
            specs.append(_quoted(f"1: :{_zsh_action(command.positional)}"))
        lines.append(f"      {command.name}) _arguments {' '.join(['$shared', *specs])} ;;")
    lines += ["    esac", "    ;;", "esac", ""]
    return "\n".join(lines)


def _zsh_option(option: Option) -> Iterator[str]:
    told = option.help.replace("[", "(").replace("]", ")").replace(":", " -")
    for flag in option.flags:
        value = "" if option.takes is None else f": :{_zsh_action(option.takes)}"
        yield _quoted(f"*{flag}[{told}]{value}")


def _zsh_action(takes: Takes) -> str:
    if takes.words:
        words = " ".join(takes.words)
        # What ends in = is not complete: no space after it.
        return f"compadd -S '' -- {words}" if takes.words[0].endswith("=") else f"({words})"
    return "_files" if takes.files else "_files -/" if takes.folders else " "


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# --- fish


def fish(shared: tuple[Option, ...], known: tuple[Command, ...]) -> str:
    """Return the completion for fish."""
    names = " ".join(command.name for command in known)
    none = f"not __fish_seen_subcommand_from {names}"
    lines = [f"# {MADE}", "", f"complete -c {PROGRAM} -f"]
    lines += [f"complete -c {PROGRAM} {_fish_option(option)}" for option in shared]
    for command in known:
        lines.append(f"complete -c {PROGRAM} -n '{none}' -a {command.name} -d {_fish_quoted(command.help)}")
    for command in known:
        where = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {command.name}'"
        lines += [f"{where} {_fish_option(option)}" for option in command.options]
        if command.positional is not None:
            lines.append(f"{where}{_fish_values(command.positional)}")
    return "\n".join([*lines, ""])


def _fish_option(option: Option) -> str:
    flags = " ".join(f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags)
    values = "" if option.takes is None else f" -r{_fish_values(option.takes)}"
    return f"{flags}{values} -d {_fish_quoted(option.help)}"


def _fish_values(takes: Takes) -> str:
    if takes.words:
        return f" -a {_fish_quoted(' '.join(takes.words))}"
    return " -F" if takes.files else " -a '(__fish_complete_directories)'" if takes.folders else ""


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def files() -> dict[str, str]:
    """Return name -> text of every completion."""
    shared, known = read_parsers()
    return {
        f"{PROGRAM}.bash": bash(shared, known),
        f"_{PROGRAM}": zsh(shared, known),
        f"{PROGRAM}.fish": fish(shared, known),
    }


def main() -> None:
    """Write them."""
    for name, text in files().items():
        Path(__file__).with_name(name).write_text(text)


if __name__ == "__main__":
    main()
