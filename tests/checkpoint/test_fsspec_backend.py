"""What network file systems answer, in terms of a store's backend."""

from __future__ import annotations

from typing import Any

import pytest

from singularity_core.checkpoint.fsspec_backend import FsspecBackend

_Put = dict[str, dict[str, Any]]


@pytest.fixture
def s3_backend(s3_options: dict[str, object], request: pytest.FixtureRequest) -> FsspecBackend:
    """On a real S3 server, in a place of this test's own."""
    return FsspecBackend(f"s3://store/{request.node.name}", s3_options)


def answers(backend: FsspecBackend, monkeypatch: pytest.MonkeyPatch, *responses: _Put | None) -> None:
    """As if the server gave these answers to the next requests to create a file; None: as it does."""
    client = pytest.importorskip("botocore.exceptions").ClientError
    translate = pytest.importorskip("s3fs.errors").translate_boto_error
    real, pending = backend._files.pipe_file, list(responses)

    def pipe_file(path: str, data: bytes, mode: str = "overwrite") -> None:
        response = pending.pop(0)
        if response is not None:
            raise translate(client(response, "PutObject"))
        real(path, data, mode=mode)

    monkeypatch.setattr(backend._files, "pipe_file", pipe_file)


def answer(status: int, code: str) -> _Put:
    """As botocore hands it on."""
    return {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}


def test_of_several_who_create_a_file_one_succeeds(s3_backend: FsspecBackend) -> None:
    """A second one is told that it exists, and it keeps the contents of the first."""
    s3_backend.create("a/b", b"first")
    with pytest.raises(FileExistsError):
        s3_backend.create("a/b", b"second")
    assert s3_backend.get("a/b") == b"first"


@pytest.mark.parametrize("code", ["PreconditionFailed", "412"])
def test_a_failed_condition_says_that_the_file_exists(
    s3_backend: FsspecBackend, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Also of a server, as MinIO, that does not name the condition."""
    answers(s3_backend, monkeypatch, answer(412, code))
    with pytest.raises(FileExistsError):
        s3_backend.create("a", b"")


def test_a_conflict_is_tried_again(s3_backend: FsspecBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else is at the same file just then: S3 wants another request, and not without end."""
    conflict = answer(409, "ConditionalRequestConflict")
    answers(s3_backend, monkeypatch, conflict, None)
    s3_backend.create("a", b"data")
    assert s3_backend.get("a") == b"data"
    answers(s3_backend, monkeypatch, conflict, conflict, conflict)
    with pytest.raises(OSError, match="no"):
        s3_backend.create("b", b"data")


def test_no_other_answer_says_that_the_file_exists(
    s3_backend: FsspecBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may not write is told so."""
    answers(s3_backend, monkeypatch, answer(403, "AccessDenied"))
    with pytest.raises(PermissionError):
        s3_backend.create("a", b"")


def test_many_files_are_deleted_with_few_requests(
    s3_backend: FsspecBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are not there are no error; none is asked for by itself, unless it is left, and then why
    it stays is told."""
    keys = [f"chunks/x/{number}" for number in range(20)]
    for key in keys:
        s3_backend.put(key, b"1")
    s3_backend.put("chunks/x/other", b"1")

    def refuse(path: str) -> None:
        raise PermissionError(13, "Access denied", path)

    with monkeypatch.context() as patch:
        patch.setattr(s3_backend._files, "rm_file", refuse)
        s3_backend.delete([*keys, "chunks/x/none", "chunks/none/y"])
        assert list(s3_backend.list("chunks/")) == ["chunks/x/other"]
        for key in keys:
            s3_backend.put(key, b"1")
        patch.setattr(s3_backend._files, "rm", lambda paths: None)  # as s3fs where the server refuses
        with pytest.raises(PermissionError):
            s3_backend.delete(keys)
    assert len(s3_backend.list("chunks/")) == 21


def test_names_are_not_taken_for_patterns(request: pytest.FixtureRequest) -> None:
    """In a place with brackets or stars in its name, nothing else goes."""
    top = FsspecBackend(f"memory://{request.node.name}")
    keys = [f"{number}" for number in range(20)]
    for place in ("[ab]", "a"):
        for key in keys:
            top.put(f"{place}/{key}", b"1")
    FsspecBackend(f"memory://{request.node.name}/[ab]").delete(keys)
    assert set(top.list("")) == {f"a/{key}" for key in keys}
