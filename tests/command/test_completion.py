"""What Tab completes, asked of Hydra in this process and of bash in its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import environment

from oar_lightning.command.completion import candidates

BASH = shutil.which("bash")


@pytest.mark.usefixtures("quick_yaml")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("scorer=oar_", {"scorer=oar_g", "scorer=oar_p", "scorer=oar_p_approximate", "scorer=oar_p_steps"}),
        ("gate.t", {"gate.tau=", "gate.threshold="}),
        ("gate.tau=", {"gate.tau=0.4"}),
        ("+experiment=oar_g gate.mo", {"gate.mode="}),
        ("+experiment=sm", {"+experiment=smoke"}),
        ("+exp", {"+experiment="}),
        ("-m +sweeps=tau_beta_", {"+sweeps=tau_beta_grid"}),
        ("task=score sco", {"score.", "scorer", "scorer."}),  # its keys come with a task
        ("'+experiment=oar_g' scorer=rand", {"scorer=random"}),
        ("--vers", {"--version"}),
        ("gate.tua", set()),
        ("+experiment=missing gate.", set()),
        ("--cfg gate.", set()),  # not a choice of the flag
    ],
)
def test_candidates(line: str, expected: set[str]) -> None:
    assert set(candidates(line)) == expected


@pytest.mark.usefixtures("quick_yaml")
def test_nothing_typed_yet() -> None:
    assert {"gate.", "loss=", "experiment=", "sweeps=", "seed="} <= set(candidates(""))


ASK = """
eval "$(oar-lightning -sc install=bash)"
ask() {
    COMP_LINE=$1 COMP_POINT=${#1}
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))  # as bash divides the line: = is a word
    _oar_lightning
    printf '<%s>' "${COMPREPLY[@]}"
    echo
}
ask 'oar-lightning scorer=rand' oar-lightning scorer = rand
ask 'python some_file.p' python some_file.p
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
ask 'python -m oar_lightning gate.tau=0.5 +experiment=oar_' python -m oar_lightning gate.tau=0.5 +experiment=oar_
eval "$(oar-lightning -sc uninstall=bash)"
complete -p oar-lightning 2>&1 | grep -c 'no completion'
"""


@pytest.mark.skipif(BASH is None, reason="there is no bash here")
def test_bash_asks(tmp_path: Path) -> None:
    for name, arguments in (("oar-lightning", '-m oar_lightning "$@"'), ("python", '"$@"')):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
        (tmp_path / name).chmod(0o755)
    variables = environment()
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    done = subprocess.run([str(BASH), "-c", ASK], env=variables, capture_output=True, text=True, timeout=100)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "<random >",
        "<>",
        "<+experiment=oar_g ><+experiment=oar_p ><+experiment=oar_p_approximate >",
        "1",
    ]
