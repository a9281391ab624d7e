"""The files that `make install` installs, as they lie in the tree: no systemd and no root needed."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_supervisor.cli.main import COMMANDS, parser_of
from vllm_supervisor.config.load import load
from vllm_supervisor.config.schema import KEYS, Shape

REPO = Path(__file__).parents[2]
ETC = REPO / "etc"
EXAMPLES = sorted(ETC.glob("examples/*.yaml"))
PAGES = sorted(ETC.glob("man/*.[58]"))


def plain(page: Path) -> str:
    """Return roff with its escapes and font macros taken out."""
    text = page.read_text().replace("\\-", "-").replace("\\&", "")
    return re.sub(r"\\f[BIR]", "", text)


def test_the_template_is_the_unit_with_the_instance_in_its_places() -> None:
    """What one unit says about hardening, limits and times, the other says too."""
    unit = (REPO / "systemd/vllm-supervisor.service").read_text()
    template = (REPO / "systemd/vllm-supervisor@.service").read_text()

    def settings(text: str) -> list[str]:
        return [line for line in text.splitlines() if "=" in line and not line.startswith("#")]

    renamed = [
        line.replace("vllm-supervisor/%i.yaml", "vllm-supervisor/config.yaml")
        .replace("vllm-supervisor/%i", "vllm-supervisor")
        .replace("vLLM (%i)", "vLLM")
        for line in settings(template)
    ]
    # The directories of instances lie inside that of the plain unit, which must not take them along.
    assert renamed == [line for line in settings(unit) if not line.startswith("RuntimeDirectoryPreserve=")]


def test_completions_are_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make completions` would change nothing."""
    monkeypatch.delenv("COLUMNS", raising=False)
    spec = importlib.util.spec_from_file_location("generate", ETC / "completions/generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "generate", generate)
    spec.loader.exec_module(generate)
    for name, text in generate.files().items():
        assert (ETC / "completions" / name).read_text() == text, f"{name} is old: run `make completions`"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm-supervisor sta", {"status", "start"}),
        ("vllm-supervisor --json -c /etc/x.yaml wa", {"wait"}),
        ("vllm-supervisor wait --for rea", {"ready"}),
        ("vllm-supervisor restart --no-d", {"--no-drain"}),
        ("vllm-supervisor --set engine.vllm.po", {"engine.vllm.port="}),
        ("vllm-supervisor explain gpu_f", {"gpu_fault"}),
        ("vllm-supervisor simulate ", {"serve"}),
        ("vllm-supervisor nonsense --", set()),
    ],
)
def test_bash_completes(line: str, expected: set[str]) -> None:
    """Commands, options, states, keys and causes, wherever the cursor is."""
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    script = f'. {ETC}/completions/vllm-supervisor.bash; _vllm_supervisor; printf "%s\\n" "${{COMPREPLY[@]}}"'
    environ = {"PATH": "/usr/bin:/bin", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    done = subprocess.run(["bash", "-uc", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize(("shell", "name"), [("zsh", "_vllm-supervisor"), ("fish", "vllm-supervisor.fish")])
def test_other_shells_can_read_theirs(shell: str, name: str) -> None:
    """The files for zsh and fish are free of errors of syntax."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n", str(ETC / "completions" / name)], check=True)


def test_the_manual_knows_every_command_and_option() -> None:
    """vllm-supervisor(8) has each command, and the options that all of them take."""
    text = plain(ETC / "man/vllm-supervisor.8")
    said = " ".join(re.findall(r"(?m)^\.(?:B|BR|BI) (.*)$", text)).replace('"', " ").replace(",", " ").split()
    assert [name for name in COMMANDS if name not in said] == []
    shared = {flag for action in parser_of("run")._actions for flag in action.option_strings}
    assert [flag for flag in shared - {"-h", "--help"} if flag not in said] == []


def test_the_manual_knows_every_key() -> None:
    """vllm-supervisor.yaml(5) has each key of the configuration."""
    described = re.findall(r'(?m)^\.BR (\S+) "', plain(ETC / "man/vllm-supervisor.yaml.5"))
    keys = {".".join(key) for key, known in KEYS.items() if key and known.shape is not Shape.SECTION}
    assert keys - set(described) == set()
    assert set(described) - keys == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_manual_pages_are_sound(page: Path) -> None:
    """They have the sections that readers look for, and their formatter has nothing to warn about."""
    sections = re.findall(r'(?m)^\.SH "?([^"\n]*)"?$', page.read_text())
    wanted = ["NAME", "INTERFACE", "OPTIONS", "FILES", "EXAMPLES", "SEE ALSO"]
    wanted += ["SIGNALS", "EXIT STATUS"] if page.name.endswith(".8") else []
    assert set(wanted) <= set(sections)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tutf8", "-z", str(page)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_pass_check(example: Path, tmp_path: Path) -> None:
    """Each is valid as it is, without a warning, where a vLLM and the credential that it names are there."""
    vllm = tmp_path / "bin/vllm"
    vllm.parent.mkdir()
    vllm.write_text("#!/bin/sh\n")
    vllm.chmod(0o755)
    (tmp_path / "hf-token").write_text("hf_token\n")
    done = subprocess.run(
        [sys.executable, "-m", "vllm_supervisor", "check", str(example)],
        env={
            "PATH": f"{vllm.parent}:/usr/bin:/bin",
            "HOME": str(tmp_path),
            "CREDENTIALS_DIRECTORY": str(tmp_path),
            "RUNTIME_DIRECTORY": str(tmp_path),
        },
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "hf_token" not in done.stdout


def test_examples_cover_what_is_asked_for_most() -> None:
    """A small card, FP8, AWQ, several GPUs, and a CUDA environment under a home directory with its drop-in."""
    names = {path.name for path in ETC.glob("examples/*")}
    assert {"gpt-oss-20b-32gb", "fp8", "awq", "70b-four-gpus", "cuda-home"} == {path.stem for path in EXAMPLES}
    assert "cuda-home.conf" in names


def test_the_shipped_log_goes_where_the_unit_may_write() -> None:
    """The unit names a log file that the shipped configuration takes, and by hand it is in the home."""
    path = ETC / "config.yaml"
    environ = {"HOME": "/home/x", "PATH": "/usr/bin", "RUNTIME_DIRECTORY": "/run/x"}
    by_hand = load(path, environ={**environ, "HOME": "/tmp"}).settings.engine.vllm.log_file
    assert by_hand == "/tmp/.microdc/vllm.log"
    under_unit = load(path, environ={**environ, "VLLM_LOG_FILE": "/tmp/vllm.log"}).settings.engine.vllm.log_file
    assert under_unit == "/tmp/vllm.log"


def test_install_refuses_relative_places_and_missing_rights(tmp_path: Path) -> None:
    """Wrong use ends before anything is made."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "PYTHON": "/usr/bin/python3",
        "PIP_FLAGS": "",
        "PURGE": "",
        "SYSCONFDIR": "/etc",
    }
    script = ["sh", str(ETC / "install.sh"), "install"]
    for given, complaint in (
        ({"PREFIX": "usr", "DESTDIR": str(tmp_path)}, "must be absolute"),
        ({"PREFIX": "/usr", "DESTDIR": str(tmp_path), "PYTHON": "/bin/false"}, "is not Python 3.11 or later"),
    ):
        done = subprocess.run(script, env=environ | given, cwd=REPO, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith("vllm-supervisor: ")
        assert complaint in done.stderr
        assert list(tmp_path.iterdir()) == []
