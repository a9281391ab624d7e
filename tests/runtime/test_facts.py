"""What is known beside the state, fact by fact."""

from vllm_supervisor.runtime.facts import Examined, Facts, learn_fact


def test_what_an_examination_found_belongs_to_an_end() -> None:
    """Where none is known, there is nothing that it could be told of."""
    facts = Facts(since_wall=0.0)
    assert learn_fact(facts, Examined(1, diagnosis={"class": "host_oom"}, bundle="b")) is facts
