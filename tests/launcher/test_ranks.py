"""What ranks see, and what comes back from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import Launcher

SHOW = """
import json, os, sys
seen = {"argv": sys.argv[1:], "environment": dict(os.environ), "path0": sys.path[0]}
os.write(1, (json.dumps(seen) + chr(10)).encode())  # at once: ranks share this pipe
"""


def shown(output: str) -> list[dict[str, Any]]:
    """What ranks that ran SHOW saw, in the order of their ranks."""
    seen = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return sorted(seen, key=lambda rank: int(rank["environment"]["RANK"]))


def test_rank_environment_has_torchrun_names(launcher: Launcher) -> None:
    """Each rank finds its place in the job under the names that torchrun uses."""
    done = launcher.run("--nproc-per-node", "3", launcher.script(SHOW))
    assert done.returncode == 0, done.stderr
    ranks = [rank["environment"] for rank in shown(done.stdout)]
    assert len(ranks) == 3
    for number, seen in enumerate(ranks):
        assert seen["RANK"] == seen["LOCAL_RANK"] == seen["ROLE_RANK"] == str(number)
        assert seen["WORLD_SIZE"] == seen["LOCAL_WORLD_SIZE"] == seen["ROLE_WORLD_SIZE"] == "3"
        assert seen["GROUP_RANK"] == "0"
        assert seen["GROUP_WORLD_SIZE"] == "1"
        assert seen["MASTER_ADDR"] == "127.0.0.1"
        assert seen["SINGULARITY_RANK"] == str(number)
    assert len({seen["MASTER_PORT"] for seen in ranks}) == 1
    assert int(ranks[0]["MASTER_PORT"]) > 0


def test_arguments_after_the_script_pass_through(launcher: Launcher) -> None:
    """What follows the script reaches it untouched, even where it looks like the launcher's own options."""
    arguments = ["--backend", "fake", "--help", "-m", "--", "--nproc_per_node=7", "a b", ""]
    done = launcher.run(launcher.script(SHOW), *arguments)
    assert shown(done.stdout)[0]["argv"] == arguments


@pytest.mark.parametrize("spelling", ["--nproc-per-node=2", "--nproc_per_node=2"])
def test_dash_and_underscore_spellings(launcher: Launcher, spelling: str) -> None:
    """Options may be spelt with dashes or underscores."""
    assert len(shown(launcher.run(spelling, launcher.script(SHOW)).stdout)) == 2


@pytest.mark.parametrize("variable", ["SINGULARITY_RUN_NPROC_PER_NODE", "PET_NPROC_PER_NODE"])
def test_options_have_environment_defaults(launcher: Launcher, variable: str) -> None:
    """Each option takes its default from the environment, under our name or torchrun's."""
    done = launcher.run(launcher.script(SHOW), **{variable: "2"})
    assert len(shown(done.stdout)) == 2


def test_option_wins_over_environment(launcher: Launcher) -> None:
    """A given option is stronger than its environment default."""
    done = launcher.run("--nproc-per-node", "1", launcher.script(SHOW), SINGULARITY_RUN_NPROC_PER_NODE="2")
    assert len(shown(done.stdout)) == 1


def test_backend_from_environment(launcher: Launcher) -> None:
    """SINGULARITY_BACKEND stands in for --backend."""
    done = launcher.run("--no-proxy", launcher.script(SHOW), backend=None, SINGULARITY_BACKEND="plain")
    assert done.returncode == 0, done.stderr
    assert shown(done.stdout)[0]["environment"]["SINGULARITY_BACKEND"] == "plain"


def test_gpu_means_one_rank_per_device(launcher: Launcher) -> None:
    """--nproc-per-node gpu starts as many ranks as there are devices."""
    assert len(shown(launcher.run("--nproc-per-node", "gpu", launcher.script(SHOW)).stdout)) == 4


def test_search_path_is_prepended(launcher: Launcher) -> None:
    """The backend's library directory comes first in LD_LIBRARY_PATH, and the user's entries stay."""
    done = launcher.run(launcher.script(SHOW), LD_LIBRARY_PATH="/user/one:/user/two")
    path = shown(done.stdout)[0]["environment"]["LD_LIBRARY_PATH"]
    assert path.split(":")[:3] == ["/nonexistent/plain-libraries", "/user/one", "/user/two"]


def test_preload_is_kept(launcher: Launcher) -> None:
    """The user's LD_PRELOAD reaches the ranks."""
    done = launcher.run(launcher.script(SHOW), LD_PRELOAD="libm.so.6")
    assert "libm.so.6" in shown(done.stdout)[0]["environment"]["LD_PRELOAD"].split(":")


def test_ranks_without_proxy_get_the_backends_settings(launcher: Launcher) -> None:
    """With --no-proxy the ranks hold the driver, so they get what the backend asks for its proxies."""
    environment = shown(launcher.run(launcher.script(SHOW)).stdout)[0]["environment"]
    assert environment["PLAIN_SETTING"] == "for processes with the driver"
    assert "SINGULARITY_DEVICES" not in environment


def test_module(launcher: Launcher) -> None:
    """-m runs a module, as python -m does."""
    launcher.script(SHOW, "shower.py")
    done = launcher.run(
        "-m", "shower", "x", PYTHONPATH=f"{launcher.folder}:{os.environ.get('PYTHONPATH', '')}"
    )
    assert shown(done.stdout)[0]["argv"] == ["x"]


def test_no_python(launcher: Launcher) -> None:
    """--no-python runs a program as it is."""
    done = launcher.run("--no-python", "sh", "-c", "echo rank $RANK")
    assert done.stdout == "rank 0\n"


def test_script_directory_comes_first_on_sys_path(launcher: Launcher) -> None:
    """A script imports its neighbours, as it does without the launcher."""
    assert shown(launcher.run(launcher.script(SHOW)).stdout)[0]["path0"] == str(launcher.folder)


def test_child_exit_code_is_the_launchers(launcher: Launcher) -> None:
    """The launcher's exit code is that of the rank that failed."""
    done = launcher.run(launcher.script("import sys; sys.exit(42)"))
    assert done.returncode == 42
    assert "rank 0" in done.stderr
    assert "exited with code 42" in done.stderr


def test_signal_becomes_128_plus_n(launcher: Launcher) -> None:
    """A rank that a signal killed gives 128 + n."""
    done = launcher.run(launcher.script("import os; os.kill(os.getpid(), 11)"))
    assert done.returncode == 139
    assert "SIGSEGV" in done.stderr


FIRST_FAILS = """
import os, sys, time, pathlib
rank = int(os.environ["RANK"])
if rank == 1:
    print("the reason of rank one", file=sys.stderr)
    sys.exit(7)
time.sleep(1000)
"""


def test_first_failure_is_the_root_cause(launcher: Launcher) -> None:
    """The others are ended, and the report names the rank that failed first, with its last words."""
    done = launcher.run("--nproc-per-node", "3", launcher.script(FIRST_FAILS))
    assert done.returncode == 7
    report = done.stderr[done.stderr.index("root cause") :]
    assert "rank 1" in report
    assert "the reason of rank one" in report
    assert "rank 0" not in report


STUBBORN = """
import os, pathlib, signal, sys, time
rank = int(os.environ["RANK"])
ready = pathlib.Path(sys.argv[1])
if rank == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ready.write_text("")
    time.sleep(1000)
while not ready.exists():
    time.sleep(0.01)
sys.exit(3)
"""


def test_rank_that_ignores_sigterm_is_killed(launcher: Launcher) -> None:
    """After the grace period a rank that does not heed SIGTERM is killed, and the root cause stays."""
    done = launcher.run(
        "--nproc-per-node", "2", "--grace-seconds", "0.2",
        launcher.script(STUBBORN), str(launcher.folder / "ready"),
    )  # fmt: skip
    assert done.returncode == 3


TALK = """
import os, sys
rank = os.environ["RANK"]
print(f"out of {rank}")
print(f"err of {rank}", file=sys.stderr)
"""


def test_logs_and_terminal(launcher: Launcher) -> None:
    """With --log-dir each rank's streams go to files of their own, and the terminal, prefixed."""
    logs = launcher.folder / "logs"
    done = launcher.run(
        "--nproc-per-node", "2", "--log-dir", str(logs), "--rdzv-id", "job7", launcher.script(TALK)
    )
    assert done.returncode == 0, done.stderr
    for rank in "01":
        place = logs / "job7" / "attempt_0" / rank
        assert (place / "stdout.log").read_text() == f"out of {rank}\n"
        assert (place / "stderr.log").read_text() == f"err of {rank}\n"
        assert f"[rank{rank}]: out of {rank}\n" in done.stdout
        assert f"[rank{rank}]: err of {rank}\n" in done.stderr


def test_logs_of_an_earlier_attempt_are_kept(launcher: Launcher) -> None:
    """A second run under the same id writes to the next attempt_N."""
    for _ in range(2):
        launcher.run("--log-dir", "logs", "--rdzv-id", "again", launcher.script(TALK))
    attempts = sorted(path.name for path in (launcher.folder / "logs" / "again").iterdir())
    assert attempts == ["attempt_0", "attempt_1"]


def test_large_output_is_not_lost(launcher: Launcher) -> None:
    """Output that is larger than any buffer arrives complete, also from a rank that then fails."""
    script = launcher.script(
        "import sys\nfor i in range(50000): print('line', i, file=sys.stderr)\nsys.exit(5)"
    )
    done = launcher.run("--log-dir", "logs", "--rdzv-id", "x", script)
    assert done.returncode == 5
    log = Path(launcher.folder, "logs/x/attempt_0/0/stderr.log").read_text().splitlines()
    assert log == [f"line {i}" for i in range(50000)]


def test_two_jobs_at_once(launcher: Launcher) -> None:
    """Two jobs that run at the same time each have all their ranks, and do not disturb each other."""
    wait = (
        SHOW
        + "\nimport pathlib, time\nme, other = sys.argv[1:]\npathlib.Path(me).touch()\n"
        + "while not pathlib.Path(other).exists(): time.sleep(0.01)\n"
    )
    script = launcher.script(wait)
    first = launcher.start("--nproc-per-node", "2", script, "a", "b")
    second = launcher.start("--nproc-per-node", "2", script, "b", "a")
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert len(shown(out)) == 2


def limit_open_files(launcher: Launcher, kind: str, count: int) -> None:
    launcher.program = ["sh", "-c", f'ulimit -{kind}n {count} && exec "$@"', "sh", *launcher.program]


def test_many_ranks_under_a_low_soft_limit(launcher: Launcher) -> None:
    """The launcher takes the open files that it may have; ranks get the limit that it was started with."""
    limit_open_files(launcher, "S", 60)
    done = launcher.run("--nproc-per-node", "30", "--no-python", "sh", "-c", "ulimit -Sn")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["60"] * 30


def test_too_few_open_files(launcher: Launcher) -> None:
    """When the hard limit is too low, the job ends with that reason and what helps, not with a trace."""
    limit_open_files(launcher, "", 40)
    done = launcher.run("--nproc-per-node", "40", "--no-python", "true")
    assert done.returncode == 1
    assert "Too many open files" in done.stderr
    assert "ulimit -Hn" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nproc-per-node", "0", "x.py"], "--nproc-per-node 0"),
        (["--nproc-per-node", "many", "x.py"], "gpu, auto or cpu"),
        (["--nproc-per-node", "\N{SUPERSCRIPT TWO}", "x.py"], "--nproc-per-node"),
        (["--rdzv-endpoint", "h:\N{SUPERSCRIPT TWO}", "x.py"], "HOST[:PORT]"),
        (["--rdzv-endpoint", "h:99999", "x.py"], "a port up to 65535"),
        (["--rdzv-endpoint", "h:29500", "--master-port", "29501", "x.py"], "different ports"),
        (["--devices", "9", "x.py"], "4 device(s)"),
        (["--nnodes", "2", "x.py"], "one node"),
        (["--max-restarts", "3", "x.py"], "does not restart"),
        (["-m", "--no-python", "x.py"], "exclude each other"),
        (["--rdzv-id", "../x", "x.py"], "--rdzv-id"),
        (["--rank-devices", "0", "x.py"], "leave out --no-proxy"),
        (["--swap-limit", "4G", "x.py"], "leave out --no-proxy"),
        (["--no-such-option", "x.py"], "--no-such-option"),
        (["--slice-wait", "nan", "x.py"], "no number of seconds"),
        (["--grace-seconds", "inf", "x.py"], "no number of seconds"),
        ([], "script is missing"),
    ],
)
def test_usage_errors(launcher: Launcher, arguments: list[str], said: str) -> None:
    """What cannot be done is refused by name, with exit code 2, before anything starts."""
    done = launcher.run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_without_backend_nothing_is_chosen(launcher: Launcher) -> None:
    """Without --backend the launcher lists the backends and does not fall back to any."""
    done = launcher.run("x.py", backend=None)
    assert done.returncode == 2
    assert "--backend is missing" in done.stderr
    assert "plain" in done.stderr
    assert "absent (its hardware is absent)" in done.stderr


def test_unknown_backend_lists_candidates(launcher: Launcher) -> None:
    """A misspelt backend is a usage error that names the candidates."""
    done = launcher.run("x.py", backend="plane")
    assert done.returncode == 2
    assert "plain" in done.stderr


def test_unavailable_backend_says_why(launcher: Launcher) -> None:
    """A backend that cannot be used here is refused with its reason and remedy."""
    done = launcher.run("x.py", backend="absent")
    assert done.returncode == 1
    assert "its hardware is absent" in done.stderr
    assert "Plug it in." in done.stderr


def test_backend_without_driver_library_needs_no_proxy(launcher: Launcher) -> None:
    """A backend that no proxy can serve is refused unless --no-proxy is given."""
    done = launcher.run("x.py", backend=None, SINGULARITY_BACKEND="plain")
    assert done.returncode == 2
    assert "--no-proxy" in done.stderr


def test_missing_program(launcher: Launcher) -> None:
    """A program that does not exist gives the shell's 127, and its name."""
    done = launcher.run("--no-python", "/no/such/program")
    assert done.returncode == 127
    assert "/no/such/program" in done.stderr


def test_standard_input_reaches_the_rank(launcher: Launcher) -> None:
    """The launcher leaves its standard input to the ranks."""
    done = launcher.run("--no-python", "cat", standard_input="to the rank")
    assert done.stdout == "to the rank"
