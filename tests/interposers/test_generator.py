"""The generator: current output, and what it says about wrong annotations."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("pycparser")


def run(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """The generator, in its own process, in the checkout `root`."""
    command = [sys.executable, "-m", "interposers.generator", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the generator reads and writes."""
    shutil.copytree(ROOT / "interposers", tmp_path / "interposers")
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "reference-supported-calls.md", tmp_path / "docs")
    return tmp_path


def edit(checkout: Path, pattern: str, replacement: str) -> None:
    """Replaces exactly one match in the copy's annotations."""
    path = checkout / "interposers" / "annotations.toml"
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def test_committed_files_are_current() -> None:
    """What is generated and committed is what the generator writes now."""
    result = run("--check")
    assert result.returncode == 0, result.stderr


def test_check_names_what_is_stale(checkout: Path) -> None:
    """--check fails, names the file and the remedy, and changes nothing; a run then makes it current."""
    path = checkout / "interposers" / "generated" / "calls.h"
    path.write_text(path.read_text() + "\n")
    before = path.read_text()
    result = run("--check", root=checkout)
    assert result.returncode == 1
    assert (
        "interposers/generated/calls.h is not current: run `python -m interposers.generator`" in result.stderr
    )
    assert path.read_text() == before
    assert run(root=checkout).returncode == 0
    assert run("--check", root=checkout).returncode == 0


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^cuEventQuery = ", "cuEventQuerry = ", "cuEventQuerry is not in cuda.h"),
        (r'^(cuEventQuery = \{mode = )"call"', r'\1"send"', "mode 'send' is none of"),
        (r'^(cuStreamGetFlags = .*)flags = "out"', r'\1nothing = "out"', "no parameters ['nothing']"),
        (r", params = \{pvalue = \"out\"\}", "", 'say what size_t *pvalue is: params.pvalue = "out"'),
        (
            r'^(cuStreamGetFlags = \{mode = )"call"',
            r'\1"post"',
            "a call with results cannot be fire and forget",
        ),
        (r'^(cuStreamWaitEvent = \{mode = "post")', r"\1, blocks = true", "only a call that waits may block"),
        (r'^(cuEventQuery = \{mode = "call")', r"\1, blokcs = true", "unknown keys ['blokcs']"),
    ],
)
def test_wrong_annotation_is_explained(checkout: Path, pattern: str, replacement: str, message: str) -> None:
    """A wrong annotation fails with the call's name and what is wrong; nothing is written."""
    edit(checkout, pattern, replacement)
    before = (checkout / "interposers" / "generated" / "client.c").read_text()
    result = run(root=checkout)
    assert result.returncode == 2
    assert message in result.stderr
    assert (checkout / "interposers" / "generated" / "client.c").read_text() == before


def test_missing_header_is_explained(tmp_path: Path) -> None:
    """A folder without cuda.h is named, together with the option that gives another."""
    result = run("--header-dir", str(tmp_path))
    assert result.returncode == 2
    assert "--header-dir" in result.stderr


def test_every_function_of_the_header_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every function that cuda.h declares, old variants included, is defined for export by the client."""
    monkeypatch.syspath_prepend(str(ROOT))  # the generator is not installed
    from interposers.generator.header import read_header

    header = read_header(header_directory())
    text = (ROOT / "interposers" / "generated" / "client.c").read_text()
    exported = set(re.findall(r"^SG_EXPORT CUresult CUDAAPI (\w+)\(", text, re.MULTILINE))
    assert exported == {f.name for f in header.functions}
    assert {
        "cuCtxCreate_v2",
        "cuEventElapsedTime",
        "cuGraphInstantiate_v2",
        "cuMemcpyHtoD_v2_ptds",
    } <= exported


def test_export_table_is_not_served() -> None:
    """No private table: cuGetExportTable has one answer, CUDA_ERROR_NOT_FOUND."""
    text = (ROOT / "interposers" / "client" / "names.c").read_text()
    body = text.split("sg_hand_cuGetExportTable", 1)[1].split("}", 1)[0]
    assert body.count("return") == 1
    assert "return CUDA_ERROR_NOT_FOUND;" in body
