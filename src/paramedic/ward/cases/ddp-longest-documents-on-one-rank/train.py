"""Train a small recurrent language model on documents that are sorted by length and dealt out to the ranks."""

import time
from statistics import median

import torch
import torch.nn.functional as F
from ddp_job import finish, log, of_all_ranks, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

WORDS, DOCUMENTS, BATCH = 50, 192, 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.rnn = nn.GRU(16, 64, batch_first=True)
        self.next = nn.Linear(64, WORDS)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        return self.next(self.rnn(self.words(text))[0])


def documents() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    lengths = [20 + int(380 * (number / DOCUMENTS) ** 6) for number in range(DOCUMENTS)]
    return [torch.randint(WORDS, (length,), generator=generator) for length in lengths]


def own_documents(rank: int, world: int) -> list[torch.Tensor]:
    share = DOCUMENTS // world
    return documents()[rank * share : (rank + 1) * share]


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = DDP(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    own = own_documents(rank, world)
    log.info("rank %d has %d documents, %d words", rank, len(own), sum(map(len, own)))
    times = []
    for step in range(len(own) // BATCH):
        text = nn.utils.rnn.pad_sequence(own[step * BATCH : (step + 1) * BATCH], batch_first=True)
        began = time.perf_counter()
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        forward = time.perf_counter() - began
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = time.perf_counter() - began
        times.append(forward)
        log.info("rank %d step %d loss %.4f words %d forward %.0f ms step %.0f ms",
                 rank, step, loss.item(), text.numel(), forward * 1e3, whole * 1e3)  # fmt: skip
    words = of_all_ranks(sum(map(len, own)))
    busy = of_all_ranks(median(times))
    finish(word_ratio=max(words) / min(words), time_ratio=max(busy) / min(busy))


main()
