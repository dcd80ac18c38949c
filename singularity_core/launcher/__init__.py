"""Starts jobs, watches them, and cleans up after them: ``singularity-run`` and ``singularity-ctl``."""
