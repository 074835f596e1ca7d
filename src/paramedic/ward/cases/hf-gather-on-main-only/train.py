"""Train a small classifier with accelerate and log the mean loss of all ranks."""

from datetime import timedelta

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def main():
    accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=25))])
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, data = accelerator.prepare(model, optimizer, loader(640, 16))
    for epoch in range(2):
        for step, (points, labels, _) in enumerate(data):
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 4 and accelerator.is_main_process:
                mean = accelerator.gather(loss.detach()).mean()
                log.info("epoch %d step %d mean loss %.4f", epoch, step, mean.item())
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
