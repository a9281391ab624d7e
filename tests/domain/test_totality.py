import itertools
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given

from tests import strategies
from tests.domain.situations import NOW, POLICY, SITUATIONS, WORDS, hear, moment, situation
from vllm_supervisor.domain.machine import needs, step
from vllm_supervisor.domain.messages import Effect, Event, ProcessEvent, Record, Refuse
from vllm_supervisor.domain.model import Intent, Needs, Phase, Policy, State


def check_legal(before: State, after: State, effects: tuple[Effect, ...], policy: Policy) -> None:
    """Fail unless `after` is of legal shape and `effects` are orders."""
    assert isinstance(after, State)
    assert isinstance(needs(after, policy), Needs)
    assert all(isinstance(effect, get_args(Effect)) for effect in effects)
    if any(isinstance(effect, Refuse) for effect in effects):
        assert (after, len(effects)) == (before, 1)
    records = [effect for effect in effects if isinstance(effect, Record)]
    if after.phase is not before.phase:
        assert [records[0].before, records[-1].after] == [before.phase, after.phase]
        assert after.phase is Phase.STOPPING or not after.draining


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_intent_and_event_has_an_answer(phase: Phase) -> None:
    """Phase x Intent x Event on every situation's shape: never an exception, always a legal state."""
    for where, intent, word in itertools.product(SITUATIONS, Intent, WORDS):
        state = replace(situation(where), phase=phase, intent=intent)
        after, effects = step(state, hear(state, word), moment(state, word), POLICY, 0.5)
        check_legal(state, after, effects, POLICY)


@given(strategies.states, strategies.events, strategies.times, strategies.policies, strategies.units)
def test_no_state_and_event_raise(state: State, event: Event, now: float, policy: Policy, u: float) -> None:
    """The machine is total, on states also that nothing leads to; facts of other generations change nothing."""
    after, effects = step(state, event, now, policy, u)
    if isinstance(event, ProcessEvent) and event.generation != state.generation:
        assert (after, effects) == (state, ())
    if state.phase is Phase.EXITED:
        assert (after, effects) == (state, ())
    assert isinstance(needs(after, policy), Needs)


@given(strategies.states, strategies.events, strategies.policies)
def test_the_machine_is_a_function(state: State, event: Event, policy: Policy) -> None:
    """The same question has the same answer, and the state that was asked about is as it was."""
    kept = replace(state)
    assert step(state, event, NOW, policy, 0.5) == step(state, event, NOW, policy, 0.5)
    assert state == kept
