import copy
import json
import pickle
from dataclasses import asdict, astuple, dataclass

import pytest

from vllm_supervisor.domain.secret import MASK, Secret, is_secret_name

VALUE = "sk-visible"


@dataclass(frozen=True)
class Holder:
    key: Secret


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(str(Secret(VALUE)), id="str"),
        pytest.param(repr(Secret(VALUE)), id="repr"),
        pytest.param(f"{Secret(VALUE)}", id="format"),
        pytest.param("%s %r" % (Secret(VALUE), Secret(VALUE)), id="percent"),  # noqa: UP031 -- the log formatters' way
        pytest.param(repr(Holder(Secret(VALUE))), id="repr of its holder"),
        pytest.param(repr(asdict(Holder(Secret(VALUE)))), id="asdict of its holder"),
        pytest.param(repr(astuple(Holder(Secret(VALUE)))), id="astuple of its holder"),
        pytest.param(json.dumps(asdict(Holder(Secret(VALUE))), default=str), id="json of its holder"),
        pytest.param(repr(copy.deepcopy(Secret(VALUE))), id="copy"),
    ],
)
def test_a_secret_shows_a_mask(shown: str) -> None:
    """No way of printing that code takes by accident shows the value."""
    assert VALUE not in shown
    assert MASK in shown


def test_a_secret_is_revealed_only_on_purpose() -> None:
    """The one who needs it gets it."""
    assert Secret(VALUE).reveal() == VALUE


def test_a_secret_is_not_pickled() -> None:
    """A crash bundle or a cache must not hold it."""
    with pytest.raises(TypeError, match="not written anywhere"):
        pickle.dumps(Secret(VALUE))


def test_secrets_compare_by_value() -> None:
    """A reload can tell whether the key changed."""
    assert Secret(VALUE) == Secret(VALUE)
    assert hash(Secret(VALUE)) == hash(Secret(VALUE))
    assert Secret(VALUE) != Secret("other")
    assert Secret(VALUE) != VALUE


@pytest.mark.parametrize(
    "name",
    [
        "VLLM_API_KEY",
        "hf_token",
        "Client_Secret",
        "db-password",
        "--api-key",
        "KEYRING",
        "PASSWD",
        "SSH_PASSPHRASE",
        "DB_PASS",
        "smtp-pwd",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_a_name_that_marks_a_secret(name: str) -> None:
    """`*KEY* *TOKEN* *SECRET* *PASSWORD*` and their like, any case, anywhere in the name; others at its end."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["", "PATH", "VLLM_USE_FLASHINFER_SAMPLER", "K_E_Y", "CUDA_BYPASS", "PASS_THROUGH", "PWD", "OLDPWD"]
)
def test_a_name_that_marks_none(name: str) -> None:
    """Other names are shown as they are."""
    assert not is_secret_name(name)
