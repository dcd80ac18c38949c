"""From the command line to the job's box."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

import click

from ..box.trial import ADDRESS
from .option_group import option_group
from .settings import BoxSettings

_ONLY_WITH_BOX = ("box_network", "box_random_addresses")


def box_options(option: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Adds the options about the box; `option` makes one in all its spellings."""
    options = [
        option("--box", is_flag=True, help="Run the ranks in namespaces of their own.  Needs root."),
        option("--box-network", type=click.Choice(["private", "host"]),
               help="With --box: a network of the job's own, without a way out, or the machine's.  "
               "[default: private]"),
        option("--box-random-addresses", is_flag=True,
               help="With --box: leave address spaces and Python's hash seed random."),
    ]  # fmt: skip
    return option_group(options)


def box_settings(options: dict[str, Any], master_addr: str) -> BoxSettings | None:
    """None: no box is wanted.  `click.UsageError` for what does not go together."""
    if not options["box"]:
        given = [name for name in _ONLY_WITH_BOX if options[name]]
        if given:
            raise click.UsageError(f"--{given[0].replace('_', '-')} says what a box is like; add --box")
        return None
    private = options["box_network"] != "host"
    hostname = socket.gethostname()
    if private and not _is_inside(master_addr, hostname):
        raise click.UsageError(
            f"--box: {master_addr} is not in the network of the job's box, which has 127.0.0.1, ::1 and "
            f"{ADDRESS}; leave out --master-addr and --rdzv-endpoint's host, or use --box-network host"
        )
    return BoxSettings(
        hostname=hostname,
        address=ADDRESS if private else None,
        fixed_addresses=not options["box_random_addresses"],
    )


def _is_inside(address: str, hostname: str) -> bool:
    if address in ("localhost", hostname, ADDRESS):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
