"""Both ways of feeding a diagnoser, which have to agree."""

from vllm_supervisor.domain.diagnosis import Context, Diagnoser, Diagnosis, Scanner


def line_by_line(log: str, context: Context | None = None) -> Diagnosis | None:
    """Feed as the daemon does, from a tail."""
    diagnoser = Diagnoser()
    for line in log.split("\n"):
        diagnoser.feed(line)
    return diagnoser.verdict(context)


def in_bulk(log: str, context: Context | None = None, chunk: int = 997) -> Diagnosis | None:
    """Feed as `diagnose` does, in chunks that are cut anywhere."""
    diagnoser = Diagnoser()
    scanner = Scanner(diagnoser)
    data = log.encode()
    for start in range(0, len(data), chunk):
        scanner.feed(data[start : start + chunk])
    scanner.finish()
    return diagnoser.verdict(context)
