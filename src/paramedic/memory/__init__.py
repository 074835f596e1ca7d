"""How much memory a training step takes on each rank, without a GPU. Read `estimate.py` first."""
