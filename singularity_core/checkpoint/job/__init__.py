"""What a checkpoint of a job has beside its processes and its files.  Knows nothing of the launcher.

`trees` carries small directories that belong together, as the sessions' files and the box's /dev/shm;
`tree_list` is what is written down about one, and pure.  `sessions` carries device memory."""

from .sessions import SessionError, SessionFacts, StagedMemory, put_memory, read_sessions, take_memory
from .tree_list import TreeError
from .trees import put_tree, stage_tree, take_tree

__all__ = [
    "SessionError",
    "SessionFacts",
    "StagedMemory",
    "TreeError",
    "put_memory",
    "put_tree",
    "read_sessions",
    "stage_tree",
    "take_memory",
    "take_tree",
]
