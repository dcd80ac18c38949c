"""Jobs whose checkpoints lie on an S3 server, also when that goes away."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from .endless_job import CONTROL, Job, agree
from .jobs import finish
from .test_checkpoint_kills import undisturbed
from .test_restored import PREEMPTED, start_resume

pytestmark = pytest.mark.usefixtures("movable")


def control(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(CONTROL), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.timeout(400)
def test_a_job_goes_on_from_a_server_and_without_it(tmp_path: Path) -> None:
    """It is checkpointed to a URL, preempted, and resumed from there.  When the server is gone, a checkpoint
    fails with the URL in its reason, and the job goes on."""
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    pytest.importorskip("flask_cors", reason="needs moto[s3], flask and flask-cors")
    server_module = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    environment = {
        "FSSPEC_S3_ENDPOINT_URL": endpoint, "FSSPEC_S3_KEY": "test", "FSSPEC_S3_SECRET": "test",
    }  # fmt: skip
    s3fs.S3FileSystem(skip_instance_cache=True, endpoint_url=endpoint, key="test", secret="test").mkdir(
        "jobs"
    )
    store, name = "s3://jobs/store", f"{tmp_path.name}-{os.getpid()}"
    try:
        job = Job(tmp_path / "job", 2, 2, "--box", name=name, env=environment)
        job.until(3)
        done = control(environment, "checkpoint", "--to", store, name)
        assert done.returncode == 0, done.stderr
        assert store in done.stdout
        done = control(environment, "preempt", "--to", store, name)
        assert done.returncode == 0, done.stderr
        assert finish(job.process)[0] == PREEMPTED
        job.process = start_resume(store, env=environment)
        job.until(max(job.steps()) + 2)
    finally:
        server.stop()
    done = control(environment, "checkpoint", "--to", store, name)
    assert done.returncode == 1, done.stdout
    assert store in done.stderr
    job.until(max(job.steps()) + 2)
    agree(job.stop(), undisturbed(tmp_path / "quiet"))
