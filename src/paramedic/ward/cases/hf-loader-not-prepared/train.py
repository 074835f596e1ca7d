"""Train a small classifier with accelerate."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def main():
    accelerator = Accelerator()
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * accelerator.num_processes)
    data = loader(320, 16)
    model, optimizer = accelerator.prepare(model, optimizer)
    seen = []
    for epoch in range(2):
        for step, (points, labels, ids) in enumerate(data):
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if epoch == 0:
                seen += ids.tolist()
            if step % 5 == 0:
                log.info(
                    "epoch %d step %d of %d loss %.4f samples %s", epoch, step, len(data), loss.item(), ids[:4].tolist()
                )
    everything = gather_object(seen)
    if accelerator.is_main_process:
        log.info("first epoch: %d samples used, %d different ones", len(everything), len(set(everything)))
        with open("result.json", "w") as file:
            json.dump({"visits_per_sample": len(everything) / len(set(everything))}, file)
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
