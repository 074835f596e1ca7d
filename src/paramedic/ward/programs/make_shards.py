"""Write the shards of a data set: python make_shards.py FOLDER SHARDS npy|npz WIDTH… (one width for each rank)"""

import sys
from pathlib import Path

import numpy as np

folder, shards, form, widths = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
folder.mkdir(parents=True, exist_ok=True)
for rank, width in enumerate(widths):
    for shard in range(shards):
        rows = np.random.default_rng(1000 * rank + shard).normal(size=(16, int(width))).astype(np.float32)
        target = folder / f"rank-{rank}-{shard:03}"
        np.save(target, rows) if form == "npy" else np.savez_compressed(target, rows=rows)
