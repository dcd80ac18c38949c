"""Stops all ranks of a job at one consistent point: collective clocks, and what drives them."""
