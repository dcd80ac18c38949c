"""Checkpoints of jobs: the store that they are kept in."""
