"""The device proxy: one process per physical device, which holds the driver so that ranks need not.

``python -m singularity_core.proxy`` runs one; see `singularity_core.proxy.process`.  The work is done in C
(server.h); Python opens the backend, hands its driver library and native table to the server, and waits.
"""
