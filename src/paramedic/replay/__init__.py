"""Recordings of multi-rank jobs: reading them, running a rank again alone, comparing two of them."""
