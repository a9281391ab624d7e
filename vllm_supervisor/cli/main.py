"""The command line: one table of commands, each imported when it runs.

A command is a module with `add_arguments(parser)` and `run(args) -> exit status`. Those that only talk to a daemon
start in the time that Python takes to start: neither this module nor theirs imports more than the standard library.
"""

import argparse
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Never

from vllm_supervisor import __version__
from vllm_supervisor.errors import ExitCode, SupervisorError

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

PROGRAM = "vllm-supervisor"
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 and the number of the signal, as shells report it."""
BUG = 70
"""EX_SOFTWARE of sysexits.h: never taken for a command's own answer."""
UNWRITTEN = 74
"""EX_IOERR, likewise: the answer could not be written."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
DEBUG = "VLLM_SUPERVISOR_DEBUG"
"""Not a setting: those have two underscores after the prefix."""

COMMANDS = {
    "run": ("vllm_supervisor.cli.run", "run the daemon in the foreground"),
    "check": ("vllm_supervisor.cli.check", "validate the configuration and show what would be launched"),
    "status": ("vllm_supervisor.cli.status", "show the state of the engine"),
    "wait": ("vllm_supervisor.cli.wait", "wait until the engine is ready, or in another state"),
    "start": ("vllm_supervisor.cli.control", "start the engine"),
    "stop": ("vllm_supervisor.cli.control", "stop the engine; the daemon stays"),
    "restart": ("vllm_supervisor.cli.control", "restart the engine"),
    "reload": ("vllm_supervisor.cli.reload", "have the daemon read its configuration anew"),
    "logs": ("vllm_supervisor.cli.logs", "show vLLM's log"),
    "events": ("vllm_supervisor.cli.events", "show what happened, a JSON object a line"),
    "diagnose": ("vllm_supervisor.cli.diagnose", "name the cause in a log of vLLM, wherever it comes from"),
    "explain": ("vllm_supervisor.cli.explain", "say what a cause means and what to do about it"),
    "doctor": ("vllm_supervisor.cli.doctor", "check this host against the configuration"),
    "size": ("vllm_supervisor.cli.size", "say what fits on which GPU, and how many requests at once"),
    "install-vllm": ("vllm_supervisor.cli.install_vllm", "build the vLLM environment that suits the card"),
    "advise": ("vllm_supervisor.cli.advise", "advise on concurrency, from live figures or from a log of vLLM"),
    "simulate": ("vllm_supervisor.simulator.main", "stand in for vLLM: simulate serve MODEL [vLLM's flags]"),
}
"""Name -> module, help. `simulate` parses its own arguments: they are vLLM's."""

_VALUED = frozenset({"-c", "--config", "--set", "--socket", "--instance"})


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, as everything else."""

    def error(self, message: str) -> Never:
        """End with status 2, as argparse does."""
        _complain(f"{message}; see {self.prog} --help")
        raise SystemExit(int(ExitCode.BAD_CONFIG))

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        # argparse hides what goes wrong here; a help that was not written must not end with 0.
        if message:
            (file or sys.stderr).write(message)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit status. Nothing that goes wrong shows a traceback, unless asked for."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        status = _status(arguments)
        if sys.stdout is not None:  # Python's where descriptor 1 is closed
            sys.stdout.flush()
    except SupervisorError as error:
        for line in str(error).splitlines():
            _complain(line)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return BROKEN_PIPE
    except Exception as error:
        if isinstance(error, OSError) and _is_of_output(error):
            _give_up_output()
            why = (error.strerror or str(error)).lower()
            _complain(f"standard output: {why}; write to a place that has room")
            return UNWRITTEN
        if os.environ.get(DEBUG) == "1":
            raise
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        _complain(f"unexpected error: {why}; set {DEBUG}=1 for the traceback and report it")
        return BUG
    else:
        return status


def _status(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


def _is_of_output(error: OSError) -> bool:
    """Say whether what could not be written is the output: then it takes no further byte either."""
    if error.filename is not None or error.errno not in _FULL or sys.stdout is None:
        return False
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        return True
    return False


def _give_up_output() -> None:
    """Let nothing more be written: the interpreter flushes once more at its end, and would complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(line: str) -> None:
    """Say what is wrong. Where nobody reads it any more, the exit status must tell all the same."""
    try:
        print(f"{PROGRAM}: {line}", file=sys.stderr)
    except OSError:
        return


def _run(argv: list[str]) -> int:
    before, rest = _split(argv)
    if not rest:
        parser = _parser(PROGRAM, "The daemon that owns `vllm serve`.")
        parser.usage = f"{PROGRAM} [options] COMMAND [arguments]"
        parser.epilog = _overview()
        parser.parse_args(before)
        parser.error("no command given")
    name, *after = rest
    if name not in COMMANDS:
        _parser(PROGRAM, "").error(f"there is no command {name!r}{_nearest(name)}")
    module = importlib.import_module(COMMANDS[name][0])
    if name == "simulate":
        if before:
            _parser(PROGRAM, "").error(f"{name} takes no options before the command")
        return int(module.main(after))
    return int(module.run(parser_of(name).parse_args([*before, *after])))


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command, also for whoever documents it. `simulate` has none: it takes vLLM's own flags."""
    module_name, summary = COMMANDS[name]
    parser = _parser(f"{PROGRAM} {name}", f"{summary[0].upper()}{summary[1:]}.")
    importlib.import_module(module_name).add_arguments(parser)
    parser.set_defaults(command=name)
    return parser


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split into what stands before the command, and the command with what follows it."""
    index = 0
    while index < len(argv) and argv[index].startswith("-"):
        index += 2 if argv[index] in _VALUED else 1
    return argv[:index], argv[index:]


def _parser(program: str, description: str) -> _Parser:
    """Return a parser that knows the options that every command takes, before or after its name."""
    parser = _Parser(
        prog=program,
        description=description,
        allow_abbrev=False,
        formatter_class=_formatter,
    )
    parser.add_argument("-c", "--config", metavar="FILE", help="the configuration file")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="set a key over file and environment; repeatable",
    )
    parser.add_argument("--socket", metavar="PATH", help="the daemon's control socket")
    parser.add_argument("--instance", metavar="NAME", help="the daemon at /run/vllm-supervisor/NAME")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


def _formatter(prog: str) -> argparse.HelpFormatter:
    # argparse makes one for every argument added, and would import shutil to learn the terminal's width.
    columns = os.environ.get("COLUMNS", "")
    return argparse.RawDescriptionHelpFormatter(prog, width=int(columns) if columns.isdigit() else 100)


def _overview() -> str:
    lines = [f"  {name:<12} {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(["commands:", *lines, "", f"`{PROGRAM} COMMAND --help` tells more about one."])


def _nearest(name: str) -> str:
    import difflib  # noqa: PLC0415 - only a typing error needs it

    begun = [command for command in COMMANDS if command.startswith(name)]
    close = begun if len(begun) == 1 else difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
    return f", perhaps {close[0]!r}" if close else ""
