"""Write the shards and their manifest; shards named on the command line were lost since."""

import sys
from pathlib import Path

import numpy as np

folder = Path("corpus")
folder.mkdir()
rng = np.random.default_rng(0)
lines = []
for number in range(12):
    name = f"part-{number:05d}.npy"
    np.save(folder / name, rng.normal(size=(40, 10)).astype("float32"))
    lines.append(f"{name}\t40")
(folder / "manifest.tsv").write_text("\n".join(lines) + "\n")
for number in sys.argv[1:]:
    (folder / f"part-{int(number):05d}.npy").unlink()
