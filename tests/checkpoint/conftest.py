"""Stores to test: in a directory, in fsspec's memory, and on an S3 server."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from singularity_core.checkpoint import Store

CHUNK_BYTES = 1 << 16
"""Small, so that small objects have several."""

OpenStore = Callable[[], Store]
_names = itertools.count()


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """How to reach an S3 server with a bucket ``store``."""
    pytest.importorskip("s3fs", reason="needs s3fs")
    pytest.importorskip("flask_cors", reason="needs moto[s3], flask and flask-cors")
    server_module = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    options = {
        "endpoint_url": f"http://127.0.0.1:{port}",
        "key": "test",
        "secret": "test",
        "config_kwargs": {"retries": {"max_attempts": 1}, "connect_timeout": 2, "read_timeout": 10},
    }
    import s3fs

    s3fs.S3FileSystem(skip_instance_cache=True, **options).mkdir("store")
    yield options
    server.stop()


@pytest.fixture(params=["directory", "memory", "s3"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens one and the same store anew, as another process would."""
    number = f"{os.getpid()}-{next(_names)}"
    location, options = {
        "directory": (str(tmp_path / "store"), None),
        "memory": (f"memory://store-{number}", None),
        "s3": (f"s3://store/{number}", None),
    }[request.param]
    if request.param == "s3":
        options = request.getfixturevalue("s3_options")

    def open_it() -> Store:
        store = Store.open(location, options=options, threads=2)
        store._chunk_bytes = CHUNK_BYTES
        return store

    return open_it
