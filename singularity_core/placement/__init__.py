"""Which rank goes to which device, when there are fewer devices than ranks ("splicing-aware placement").

Ranks that share a device are time-sliced, and cheaply so only if they are *data-parallel replicas of the
same model-parallel partition*: they hold the same parameters, and meet where a mini-batch ends.  Two
pipeline stages, tensor slices or shards on one device would have to be swapped in and out many times within
a mini-batch.  So this package refuses to mix them.

Pure: it reads no file and knows no process.  `grid` says who a rank is, `notation` reads what users write,
`assignment` deals ranks out to devices and checks what was dealt by hand.
"""

from .assignment import assign, check_assignment, usable_devices
from .errors import PlacementError
from .grid import Coordinates, Degrees, data_parallel_world, rank_grid
from .notation import parse_rank_devices, parse_rank_map

__all__ = [
    "Coordinates",
    "Degrees",
    "PlacementError",
    "assign",
    "check_assignment",
    "data_parallel_world",
    "parse_rank_devices",
    "parse_rank_map",
    "rank_grid",
    "usable_devices",
]
