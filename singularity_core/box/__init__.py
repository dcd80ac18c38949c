"""The job box: namespaces of its own for the ranks of a job on this node (decision 0009)."""
