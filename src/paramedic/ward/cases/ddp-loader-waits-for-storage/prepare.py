"""Write the data twice: to a local folder, and to a mounted one, of which one file is not answered.

A file system that has stopped answering is emulated by a pipe that nobody writes to: a read waits without end.
"""

import os
from pathlib import Path

from ddp_job import quadrants

for folder in ("local", "mount"):
    for rank in range(4):
        target = Path(folder) / f"rank-{rank}"
        target.mkdir(parents=True)
        for part in range(8):
            x, y = quadrants(32, seed=100 * rank + part).tensors
            lines = [" ".join(f"{v:.4f}" for v in row) + f" {label}" for row, label in zip(x.tolist(), y.tolist(), strict=True)]
            (target / f"part-{part}.txt").write_text("\n".join(lines))
stalled = Path("mount/rank-2/part-5.txt")
stalled.unlink()
os.mkfifo(stalled)
