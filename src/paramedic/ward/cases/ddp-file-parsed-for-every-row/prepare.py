"""Write the table."""

import gzip

from ddp_job import quadrants

x, y = quadrants(4000).tensors
with gzip.open("table.txt.gz", "wt") as file:
    for row, label in zip(x.tolist(), y.tolist(), strict=True):
        file.write(" ".join(f"{v:.6f}" for v in row) + f" {label}\n")
