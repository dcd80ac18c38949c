"""What ``singularity-ctl status`` is told: the launcher's processes, and what the proxies count."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .agent_messages import CheckpointStatus, JobStatus, LogPaths, ProxyStatus, RankLogs, RankStatus, Refusal
from .job_directory import JobDirectory
from .members import Kind, Member
from .pausing import Pausing
from .sessions import SessionFacts, read_arena_bytes, read_sessions, sum_counters
from .settings import JobSettings, ordinals_of


def describe_job(
    settings: JobSettings,
    directory: JobDirectory,
    members: Sequence[Member],
    pausing: Pausing,
    *,
    phase: str,
    checkpoint: CheckpointStatus | None,
    started: float,
    now: float,
) -> JobStatus:
    """The job at this moment.  `phase` is what it is called while it is not up and running, `checkpoint` how
    far the one is that is being taken; `started` and `now` are of one monotonic clock."""
    proxies = {member.index: member for member in members if member.kind is Kind.PROXY}
    ranks = {member.index: member for member in members if member.kind is Kind.RANK}
    doors = {
        device: [
            directory.ordinal_path(ordinal) for ordinal in ordinals_of(device, settings.device_of_ordinal)
        ]
        for device in proxies
    }
    facts = {device: [found for door in doors[device] for found in read_sessions(door)] for device in proxies}
    return JobStatus(
        job=directory.job,
        run_id=settings.run_id,
        backend=settings.backend,
        launcher_pid=os.getpid(),
        state=phase or pausing.state.value,
        elapsed_seconds=now - started,
        reached=pausing.progress.reached,
        waiting=pausing.waiting(),
        ranks=[
            _rank(rank, settings, ranks.get(rank), [f for found in facts.values() for f in found], now)
            for rank in range(settings.ranks)
        ],
        proxies=[
            ProxyStatus(
                device=device,
                pid=member.process.pid,
                state=_state(member, idle="starting" if not member.ready else "running"),
                arena_bytes=read_arena_bytes(doors[device][0]),
                sessions=len(facts[device]),
            )
            for device, member in sorted(proxies.items())
        ],
        checkpoint=checkpoint,
    )


def _rank(
    rank: int, settings: JobSettings, member: Member | None, sessions: list[SessionFacts], now: float
) -> RankStatus:
    counters = sum_counters([session.counters for session in sessions if session.rank == rank])
    lived = 0.0 if member is None else (member.ended or now) - member.started
    return RankStatus(
        rank=rank,
        device=settings.device_of_rank[rank] if settings.proxied else None,
        pid=None if member is None else member.process.pid,
        state="starting" if member is None else _state(member, idle="running"),
        counters=counters,
        device_fraction=counters.device_ns / 1e9 / lived if counters is not None and lived > 0 else None,
    )


def _state(member: Member, *, idle: str) -> str:
    return idle if member.ending is None else str(member.ending)


def log_paths(settings: JobSettings, directory: JobDirectory) -> LogPaths | Refusal:
    """Where the ranks' output is kept."""
    if settings.log_dir is None:
        return Refusal(
            cause=f"Job {directory.job} keeps no logs.",
            remedy="Start it with --log-dir DIR (or SINGULARITY_RUN_LOG_DIR).",
        )
    base = settings.log_dir.absolute()
    return LogPaths(
        job=directory.job,
        ranks=[
            RankLogs(
                rank=rank,
                stdout=str(base / str(rank) / "stdout.log"),
                stderr=str(base / str(rank) / "stderr.log"),
            )
            for rank in range(settings.ranks)
        ],
    )
