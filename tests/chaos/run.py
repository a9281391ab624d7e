"""The run: round after round a fresh daemon, in each some faults, alone and in pairs, in every state."""

import json
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from tests.chaos import on_clients, on_daemon, on_engine, on_host
from tests.chaos.fault import Fault, pause
from tests.chaos.grounds import inspect
from tests.chaos.judge import Broken, Judge
from tests.chaos.world import STATES, World
from tests.rig import NotInTimeError

ALL: list[Fault] = [*on_engine.FAULTS.all, *on_host.FAULTS.all, *on_clients.FAULTS.all, *on_daemon.FAULTS.all]
_A_ROUND = 20
_ENOUGH = 5
"""A run that broke so many promises is not continued: what follows would be the same again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. `folder` is the run's, `seconds` None for no limit, `only` the numbers to do, None for all."""

    folder: Path
    seed: int
    faults: int
    seconds: float | None = None
    only: list[int] | None = None
    json: Path | None = None
    namespaces: bool = False
    """Whether process table and mounts are the run's own."""


@dataclass(slots=True)
class Attack:
    """One attack, of one fault or two, upon a daemon in a given state. Made of the seed and its number alone."""

    number: int
    state: str
    faults: list[Fault]
    random: Random

    @classmethod
    def planned(cls, seed: int, number: int) -> "Attack":
        """Return the attack that this number stands for."""
        random = Random(f"{seed} {number}")
        state = random.choice(["ready", *STATES])
        return cls(number, state, random.sample(ALL, random.choice([1, 1, 2])), random)

    def __str__(self) -> str:
        return f"{self.number}: {' + '.join(fault.name for fault in self.faults)}, while {self.state}"


@dataclass
class Outcome:
    """What came of the run."""

    done: Counter[str] = field(default_factory=Counter)
    skipped: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[tuple[str, Broken]] = field(default_factory=list)
    slowest: float = 0.0


class Run:
    """Does the attacks one by one, and asks the judge and the books after each."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._outcome = Outcome()
        self._began = time.monotonic()
        self._numbers = [*reversed(plan.only or range(plan.faults))]
        """Numbers of the attacks to come, the next one last. Some have two faults: not all of them may be needed."""
        self._grounds = inspect(plan.folder, namespaces=plan.namespaces)

    def run(self) -> Outcome:
        """Run until done, out of time, or out of patience."""
        number = 0
        while self._numbers and not self._over():
            folder = self._plan.folder / f"round-{number}"
            folder.mkdir()
            self._round(folder)
            number += 1
        return self._outcome

    def _over(self) -> bool:
        seconds = self._plan.seconds
        late = seconds is not None and time.monotonic() - self._began > seconds
        enough = sum(self._outcome.done.values()) >= self._plan.faults
        return late or enough or len(self._outcome.broken) >= _ENOUGH

    def _round(self, folder: Path) -> None:
        judge = Judge()
        world = World(folder, judge, user=self._grounds.user, mounts=self._grounds.mounts)
        what = f"round {folder.name}"
        try:
            world.open()
            for _ in range(_A_ROUND):
                if not self._numbers or self._over():
                    break
                attack = Attack.planned(self._plan.seed, self._numbers.pop())
                what = str(attack)
                self._attack(world, attack)
                self._take(judge, what)
            what = f"the end of {what}"
            if (status := world.close()) != 0:
                judge.accuse("the daemon ends when told", f"exit status {status}")
        except NotInTimeError as late:
            judge.accuse("it comes back", str(late).partition("\n")[0])
        except Exception as error:  # noqa: BLE001 -- whatever a daemon among chaos does to us is a finding, and the run goes on
            judge.accuse("chaos itself", repr(error))
        finally:
            left = world.abandon()
            if left and not judge.broken:
                judge.accuse("no process is left", "; ".join(left))
            self._take(judge, what)
            self._outcome.counts += judge.counts
            self._outcome.slowest = max(self._outcome.slowest, judge.slowest)

    def _take(self, judge: Judge, what: str) -> None:
        self._outcome.broken += [(what, broken) for broken in judge.broken]
        for broken in judge.broken[:_ENOUGH]:
            print(f"BROKEN  {broken.promise}: {broken.detail}\n        by {what}", flush=True)
        if len(judge.broken) > _ENOUGH:
            print(f"        and {len(judge.broken) - _ENOUGH} times more", flush=True)
        judge.broken.clear()

    def _attack(self, world: World, attack: Attack) -> None:
        faults = []
        for fault in attack.faults:
            if why := fault.impossible(world):
                self._outcome.skipped[fault.name] = why
            else:
                faults.append(fault)
        if not faults:
            return
        began = time.monotonic()
        if not world.reach(attack.state):
            self._outcome.counts["states that were not reached in time"] += 1
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(fault.apply(world, attack.random))
                pause(attack.random.choice([0, 0, 0.05, 0.3]))
                self._outcome.done[fault.name] += 1
            pause(attack.random.choice([0, 0.2, 0.8, 2]))
        world.come_back()
        world.audit(starved=any(fault.starves for fault in faults))
        world.see()
        print(f"{sum(self._outcome.done.values()):5} {time.monotonic() - began:6.1f} s  {attack}", flush=True)


def run(plan: Plan) -> int:
    """Run, print what came of it, and return the exit status."""
    print(f"seed {plan.seed}", flush=True)
    outcome = Run(plan).run()
    for name, why in sorted(outcome.skipped.items()):
        print(f"skipped: {name}: {why}")
    for name, count in sorted(outcome.counts.items()):
        print(f"{count:9} {name}")
    print(f"slowest judged answer {outcome.slowest * 1000:.0f} ms")
    total = sum(outcome.done.values())
    print(f"seed {plan.seed}: {total} faults of {len(outcome.done)} kinds, {len(outcome.broken)} promises broken")
    if plan.json is not None:
        told = {
            "seed": plan.seed,
            "done": outcome.done,
            "skipped": outcome.skipped,
            "counts": outcome.counts,
            "slowest_answer_s": outcome.slowest,
            "broken": [{"attack": what, **asdict(each)} for what, each in outcome.broken],
        }
        plan.json.write_text(json.dumps(told, indent=1))
    return 1 if outcome.broken else 0
