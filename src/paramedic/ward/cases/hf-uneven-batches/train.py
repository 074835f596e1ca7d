"""Train a small classifier with accelerate, every sample once per epoch."""

from datetime import timedelta

import torch
from accelerate import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def main():
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(even_batches=False),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=25))],
    )
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(208, 8))
    for epoch in range(2):
        for step, (points, labels, _) in enumerate(data):
            loss = cross_entropy(model(points), labels)
            log.info("epoch %d step %d loss %.4f", epoch, step, loss.item())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.wait_for_everyone()
        log.info("epoch %d done", epoch)
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
