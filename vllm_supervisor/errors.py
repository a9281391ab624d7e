"""What can go wrong, as exceptions, and what the process says about it when it ends.

SupervisorError           what, why, remedy; the one line that a user sees
├── ConfigError           the configuration has problems, all of them listed          (exit 2)
├── BadInputError         what a command was asked about cannot be used               (exit 2)
├── AlreadyRunningError   another daemon holds the lock                               (exit 3)
├── NoDaemonError         nobody answers on the control socket                        (exit 3)
├── ListenError           a socket could not be bound                                 (exit 4)
├── RefusedError          the daemon understood the request and declined              (exit 1)
│   └── ConfigRefusedError  a reload found a bad file, whose problems are listed
└── LaunchError           the launcher could not be executed; carries errno
"""

from enum import IntEnum
from typing import NamedTuple


class ExitCode(IntEnum):
    """Exit statuses of `vllm-supervisor`; scripts rely on them."""

    OK = 0
    NOT_READY = 1
    """Also: refused, timed out, or a negative answer of a command that asks a question."""
    BAD_CONFIG = 2
    """Also: wrong usage, as argparse does it."""
    NO_DAEMON = 3
    """For `run`: another instance holds the lock."""
    CANNOT_LISTEN = 4
    FAILED_MEANWHILE = 5
    FAILED = 10
    UNKILLABLE = 11
    """Members of the engine survived SIGKILL."""


def one_line(text: str) -> str:
    """Return `text`, which may come from anywhere, with whatever a terminal would obey, or end the line at, escaped."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


class SupervisorError(Exception):
    """An error that a user reads: `what: why; remedy`, on one line."""

    exit_code = ExitCode.NOT_READY

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(what, why, remedy)
        self.what = what
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return one_line(f"{self.what}: {self.why}; {self.remedy}")


def first_of(failures: BaseExceptionGroup) -> SupervisorError | None:
    """Return what a task group wrapped: a user reads one line, whatever task it came from. None where there is none."""
    for error in failures.exceptions:
        found = first_of(error) if isinstance(error, BaseExceptionGroup) else error
        if isinstance(found, SupervisorError):
            return found
    return None


class Problem(NamedTuple):
    """One thing wrong with the configuration. No dataclass: a client imports this, and those cost it 10 ms.

    `where` is `FILE:LINE`, or the name of the source (`--set`, an environment variable); `key` is the dotted path.
    """

    where: str
    key: str
    why: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.where}: {self.key}" if self.key else self.where
        return one_line(f"{place}: {self.why}; {self.remedy}")


class ConfigError(SupervisorError):
    """Raised when the configuration cannot be used. Nothing has been launched or changed."""

    exit_code = ExitCode.BAD_CONFIG

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        super().__init__(first.where, first.why, first.remedy)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class BadInputError(SupervisorError):
    """Raised when a command was asked about something that cannot be read, or that makes no sense."""

    exit_code = ExitCode.BAD_CONFIG


class AlreadyRunningError(SupervisorError):
    """Raised when another daemon holds the state directory or the socket."""

    exit_code = ExitCode.NO_DAEMON


class NoDaemonError(SupervisorError):
    """Raised by clients when nobody answers on the control socket."""

    exit_code = ExitCode.NO_DAEMON


class ListenError(SupervisorError):
    """Raised when the control socket or the metrics address cannot be bound."""

    exit_code = ExitCode.CANNOT_LISTEN


class RefusedError(SupervisorError):
    """Raised by clients when the daemon declines (403, 409)."""

    exit_code = ExitCode.NOT_READY


class ConfigRefusedError(RefusedError):
    """Raised by clients when the daemon keeps its configuration because the new one is bad; as text, its problems."""

    def __init__(self, problems: str) -> None:
        super().__init__("the new configuration", "is refused", "mend the file, then reload again")
        self.problems = problems

    def __str__(self) -> str:
        return self.problems


class LaunchError(SupervisorError):
    """Raised when the launcher could not be executed. No process was left behind."""

    def __init__(self, what: str, why: str, remedy: str, *, errno: int | None = None) -> None:
        super().__init__(what, why, remedy)
        self.errno = errno
