"""Put a vocabulary of the given number of words on each node's disk."""

import sys
from pathlib import Path

for node, words in enumerate(map(int, sys.argv[1:])):
    folder = Path(f"scratch/node{node}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("".join(f"word{i}\n" for i in range(words)))
