"""Documents in one text file, with an index of where each begins."""

import json
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

TEXT, INDEX = Path("out/corpus.txt"), Path("out/corpus.idx.json")


def write_corpus(documents=4000):
    g = torch.Generator().manual_seed(0)
    with TEXT.open("w") as f:
        starts = torch.randint(26, (documents, 1), generator=g)
        for row in (97 + (starts + torch.arange(40)) % 26).tolist():
            f.write(bytes(row).decode() + "\n")


def build_index():
    """Scan the text; entries are written as they are found."""
    offset = 0
    with INDEX.open("w") as out, TEXT.open("rb") as f:
        out.write("[0")
        for number, line in enumerate(f):
            offset += len(line)
            out.write(f", {offset}")
            if number % 400 == 0:
                out.flush()
                time.sleep(0.1)
        out.write("]")


class IndexedText(Dataset):
    def __init__(self, rank):
        if rank == 0:
            write_corpus()
            build_index()
        while not INDEX.exists():
            time.sleep(0.02)
        self.offsets = json.loads(INDEX.read_text())
        self.text = TEXT.read_bytes()

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        raw = self.text[self.offsets[i] : self.offsets[i + 1] - 1]
        return torch.tensor(list(raw)) - 97
