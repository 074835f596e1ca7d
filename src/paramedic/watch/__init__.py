"""A job that runs: its processes, where they stand, what they left, without harm to it."""
