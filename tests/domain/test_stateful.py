"""The machine in a world that tells the truth, at any moment and in any order; after each step the invariants hold."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests import strategies
from tests.domain.future import play
from tests.domain.situations import BLOCKER, EXIT_0, PID
from tests.domain.telling import check_records
from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import (
    Absolved,
    Adopted,
    Blocked,
    Cleared,
    Condemned,
    DeadlinePassed,
    Drained,
    Effect,
    Event,
    GroupEmpty,
    LeaderExited,
    PolicyChanged,
    Probed,
    Quit,
    RestartAsked,
    Served,
    ShutdownAsked,
    Signal,
    Spawn,
    Spawned,
    StartAsked,
    StopAsked,
)
from vllm_supervisor.domain.model import Blocker, Cause, ExitStatus, Intent, Outcome, Phase, Policy, State

ENDING = frozenset({Phase.STOPPING, Phase.KILLING, Phase.REAPING})
ALIVE = frozenset({Phase.READY, Phase.UNHEALTHY})
WANTED = frozenset({Phase.STARTING, Phase.BACKOFF}) | ALIVE
RESTING = frozenset({Phase.STOPPED, Phase.BACKOFF, Phase.EXITED})


UP = ("start", "check ends", "launch ends")
READY = (*UP, "served")
CRASHED = (*READY, "leader dies")
OVERDUE = ("start", "check ends", "stop", "a minute", "a minute")
HEADS = ((), ("start",), ("start", "check ends"), UP, READY, CRASHED, (*CRASHED, "a minute"), OVERDUE)
"""How far a run has come when chance takes over; the rare corners are many unlikely steps away."""


class MachineInAWorld(RuleBasedStateMachine):
    """Rules are what the world and operators do; `engines` is the truth about processes: generation -> leader alive."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = Policy()
        self.state = State()
        self.now = 0.0
        self.u = 0.5
        self.engines: dict[int, bool] = {}
        self.launching: int | None = None
        self.launched = 0
        self.unanswered: set[int] = set()
        self.fence = -1

    # --- the loop

    def feed(self, event: Event) -> None:
        """Step the machine as the loop does, and check what may never happen on the way."""
        before = self.state
        self.state, effects = step(before, event, self.now, self.policy, self.u)
        records = check_records(before, self.state, effects, self.now)
        if isinstance(event, StopAsked | ShutdownAsked) or (isinstance(event, RestartAsked) and before.occupied):
            self.fence = before.generation
        if Phase.READY in [record.after for record in records]:
            assert self.state.generation > self.fence, "ready again after a stop was asked for"
        started = Phase.STARTING in [record.after for record in records]
        assert isinstance(event, Adopted) or self.state.generation == before.generation + started
        for effect in effects:
            self.carry_out(effect)
        if needs(self.state, self.policy).clearing:
            self.unanswered.add(self.state.generation)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case Spawn(generation):
                assert not self.engines, "two engines at once"
                assert self.launching is None, "two launches at once"
                assert generation > self.launched, "a generation launched twice"
                self.launching = self.launched = generation
            case Signal(generation):
                assert generation in self.engines, "a signal to an engine that is gone"
            case Quit(status):
                assert self.state.phase is Phase.EXITED
                left = bool(self.engines) or self.launching is not None
                assert left == (status == 11), f"status {status} with {self.engines}, launching {self.launching}"
                assert status in (0, 10, 11)
            case _:
                pass

    # --- the world

    @initialize(policy=strategies.policies, head=st.sampled_from(HEADS))
    def begin(self, policy: Policy, head: tuple[str, ...]) -> None:
        """Begin with an empty host, some way down the road."""
        self.policy = policy
        for word in head:
            self.live(word)

    def live(self, word: str) -> None:
        """Have the world do one thing."""
        match word:
            case "check ends":
                self.answer_check(None)
            case "launch ends":
                self.answer_launch(None)
            case "served":
                self.news_of_requests(Served)
            case "leader dies":
                self.leader_dies(EXIT_0)
            case "a minute":
                self.time_passes(60.0)
            case _:
                self.ask(StopAsked() if word == "stop" else StartAsked())

    @precondition(lambda self: self.launched == 0 and self.state.phase is Phase.STOPPED)
    @rule(leader=st.booleans())
    def find_leftover(self, leader: bool) -> None:
        """An earlier daemon left its engine, or members without their leader."""
        self.launched = self.state.generation + 7
        self.engines[self.launched] = leader
        self.feed(Adopted(self.launched, 70, leader))

    @rule(command=strategies.commands)
    def ask(self, command: Event) -> None:
        """Operators may say anything at any moment."""
        self.feed(command)

    @rule(policy=strategies.policies)
    def change_policy(self, policy: Policy) -> None:
        """A reload may come at any moment, and replaces every number at once."""
        self.feed(PolicyChanged(policy))
        self.policy = policy

    @precondition(lambda self: self.unanswered)
    @rule(blocker=st.none() | strategies.blockers)
    def answer_check(self, blocker: Blocker | None) -> None:
        """The checks before a launch end, perhaps after the launch is no longer wanted."""
        generation = max(self.unanswered)
        self.unanswered.clear()
        self.feed(Cleared(generation) if blocker is None else Blocked(generation, blocker))

    @precondition(lambda self: self.launching is not None)
    @rule(blocker=st.none() | strategies.blockers)
    def answer_launch(self, blocker: Blocker | None) -> None:
        """A launch succeeds or fails, however late."""
        generation, self.launching = self.launching, None
        assert generation is not None
        if blocker is not None:
            self.feed(Blocked(generation, blocker))
            return
        assert not self.engines, "two engines at once"
        self.engines[generation] = True
        self.feed(Spawned(generation, 100 + generation))

    @precondition(lambda self: any(self.engines.values()))
    @rule(status=strategies.statuses)
    def leader_dies(self, status: ExitStatus) -> None:
        """Of itself, by our signal, or by somebody's `kill -9`."""
        (generation,) = self.engines
        self.engines[generation] = False
        self.feed(LeaderExited(generation, status))

    @precondition(lambda self: self.engines and not any(self.engines.values()))
    @rule()
    def last_member_goes(self) -> None:
        """What the loop waits for once the leader is gone; it must be waiting."""
        (generation,) = self.engines
        assert self.state.phase is Phase.EXITED or needs(self.state, self.policy).proving
        self.engines.clear()
        self.feed(GroupEmpty(generation))

    @precondition(lambda self: self.launched == self.state.generation and self.launching is None)
    @rule(outcomes=st.lists(st.sampled_from(Outcome), min_size=1, max_size=4))
    def probes_answer(self, outcomes: list[Outcome]) -> None:
        """Perhaps late: an answer may be under way when the phase changes."""
        for outcome in outcomes:
            self.feed(Probed(self.state.generation, outcome, 0.01))

    @precondition(lambda self: self.launched == self.state.generation and self.launching is None)
    @rule(kind=st.sampled_from([Served, Drained]))
    def news_of_requests(self, kind: type[Served | Drained]) -> None:
        """Perhaps late, as above."""
        self.feed(kind(self.state.generation))

    @precondition(lambda self: self.launched == self.state.generation and self.launching is None)
    @rule(stuck=st.booleans())
    def liveness_watch_speaks(self, *, stuck: bool) -> None:
        """The engine steps no more, or again. Where nothing may be restarted, nothing is ended for it."""
        before, generation = self.state, self.state.generation
        self.feed(Condemned(generation, Cause.HANG, "no step") if stuck else Absolved(generation))
        if before.phase in ALIVE and not self.policy.restart_enabled:
            assert self.state.process == before.process
            assert self.state.phase is (Phase.UNHEALTHY if stuck else before.phase)
            assert self.state.stuck == stuck

    @rule(off=st.sampled_from([-7, -1, 1, 7]))
    def stale_news(self, off: int) -> None:
        """Whatever is told about another generation changes nothing."""
        before, other = self.state, self.state.generation + off
        for event in (
            Cleared(other),
            Blocked(other, BLOCKER),
            Spawned(other, PID),
            LeaderExited(other, EXIT_0),
            GroupEmpty(other),
            Probed(other, Outcome.OK, 0.01),
            Probed(other, Outcome.REFUSED, 0.01),
            Served(other),
            Drained(other),
        ):
            self.feed(event)
            assert self.state is before

    @precondition(lambda self: needs(self.state, self.policy).wake_at is not None)
    @rule(u=strategies.units)
    def wake(self, u: float) -> None:
        """The next timer is due, to the moment."""
        self.u = u
        wake_at = needs(self.state, self.policy).wake_at
        assert wake_at is not None
        self.now = max(self.now, wake_at)
        self.feed(DeadlinePassed())

    @rule(seconds=st.sampled_from([0.0, 0.4, 1.0, 9.9, 31.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        """The loop wakes up late, as on a machine that was suspended, and takes every timer that is due."""
        self.now += seconds
        for _ in range(100):
            wake_at = needs(self.state, self.policy).wake_at
            if wake_at is None or wake_at > self.now:
                return
            self.feed(DeadlinePassed())
        raise AssertionError(f"a timer that is always due: {self.state}")

    # --- what always holds

    @invariant()
    def the_machine_knows_the_truth_about_processes(self) -> None:
        """At most one engine; it is the machine's, and the machine knows whether it has one."""
        assert len(self.engines) <= 1
        if self.state.phase is Phase.EXITED:
            return
        known = {} if self.state.process is None else {self.state.generation: self.state.process.leader_alive}
        assert known == self.engines
        assert self.state.spawning == (self.launching is not None)
        assert self.launching in (None, self.state.generation)

    @invariant()
    def phases_and_engines_go_together(self) -> None:
        """A living phase has an engine that is wanted; a resting one has none."""
        state = self.state
        if state.phase in ALIVE:
            assert state.leader_alive
            assert (state.was_ready, state.cause) == (True, None)
        if state.phase in WANTED:
            assert state.intent is Intent.UP
        if state.phase in ENDING:
            assert state.occupied
            assert state.cause is not None
        if state.phase in RESTING and state.phase is not Phase.EXITED:
            assert not state.occupied
        if state.phase is Phase.STOPPED:
            assert (state.intent, state.blocker, state.blocked, state.next_cause) == (Intent.DOWN, None, 0, None)
        assert (state.intent is Intent.EXIT) >= (state.phase is Phase.EXITED)

    @invariant()
    def what_belongs_to_a_phase_is_gone_with_it(self) -> None:
        """Timers, drain, probe tally and reason exist in their phases only."""
        state, policy = self.state, self.policy
        waiting = {
            Phase.STARTING: state.process is not None and policy.startup_timeout is not None,
            Phase.READY: state.deadline is not None and state.failures > 0,
            Phase.UNHEALTHY: policy.restart_enabled,
            Phase.STOPPING: True,
            Phase.KILLING: True,
            Phase.REAPING: True,
            Phase.BACKOFF: True,
            Phase.FAILED: policy.retry_failed_every > 0 and not state.occupied,
        }
        assert (state.deadline is not None) == waiting.get(state.phase, False)
        assert (state.signal_due is not None) == (state.phase in ENDING and not state.draining)
        assert (state.fail_why is not None) == (state.phase is Phase.FAILED)
        assert state.phase is Phase.STOPPING or not state.draining
        assert state.phase is Phase.UNHEALTHY or not state.stuck
        tallied = (state.probe_failures, state.dead_since) != (0, None)
        assert not tallied or state.phase in ALIVE
        assert state.phase is not Phase.READY or state.probe_failures < policy.failure_threshold

    @invariant()
    def a_shutdown_always_ends_in_time(self) -> None:
        """Within drain, grace and twice the kill time, launches answered or not; clean unless something is left."""
        if self.state.phase is Phase.EXITED:
            return
        limit = self.policy.drain_timeout + self.policy.stop_grace + 2 * self.policy.kill_timeout
        for launches in (True, False):
            _, at, orders = play(
                self.state,
                ShutdownAsked(),
                self.now,
                self.policy,
                lambda state: state.phase is Phase.EXITED,
                launches=launches,
            )
            assert at <= self.now + limit
            status = next(order.status for order in orders if isinstance(order, Quit))
            unkillable = self.state.phase is Phase.FAILED and self.state.occupied
            assert status == (11 if unkillable or (self.state.spawning and not launches) else 0)

    @invariant()
    def a_stop_always_works_in_time(self) -> None:
        """From anywhere, and without a further launch."""
        if self.state.intent is Intent.EXIT:
            return
        after, at, orders = play(
            self.state, StopAsked(), self.now, self.policy, lambda state: state.phase in (Phase.STOPPED, Phase.EXITED)
        )
        assert not [order for order in orders if isinstance(order, Spawn)]
        assert after.phase is Phase.STOPPED
        assert not after.occupied
        assert at <= self.now + self.policy.drain_timeout + self.policy.stop_grace + self.policy.kill_timeout

    @invariant()
    def a_start_always_works_in_time(self) -> None:
        """From anywhere, if the engine plays along: no backoff is sat out, no count of old failures is in the way.

        One that is stuck and left running does not; for it there is `restart`.
        """
        if self.state.intent is Intent.EXIT or self.state.stuck:
            return
        _, at, _ = play(self.state, StartAsked(), self.now, self.policy, lambda state: state.phase is Phase.READY)
        assert at <= self.now + self.policy.drain_timeout + self.policy.stop_grace + self.policy.kill_timeout

    @invariant()
    def a_restart_always_makes_a_new_engine(self) -> None:
        """The one that runs, or is being launched, is not the one that is ready afterwards."""
        if self.state.intent is Intent.EXIT:
            return
        word = RestartAsked(Cause.REQUESTED)
        after, _, _ = play(self.state, word, self.now, self.policy, lambda state: state.phase is Phase.READY)
        assert after.generation > self.state.generation or not self.state.occupied


TestMachineInAWorld = MachineInAWorld.TestCase
