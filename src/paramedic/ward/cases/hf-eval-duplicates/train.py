"""Train a small classifier with accelerate and evaluate it on all ranks."""

import json

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from hf_blobs import loader, logger, network
from torch.nn.functional import cross_entropy


def evaluate(accelerator, model, data):
    model.eval()
    right, total = 0, 0
    for points, labels, _ in data:
        with torch.no_grad():
            predicted = model(points).argmax(-1)
        predicted, expected = accelerator.gather((predicted, labels))
        right += int((predicted == expected).sum())
        total += len(expected)
    model.train()
    return right / total, total


def reference_accuracy(model, data):
    points, labels, _ = data.dataset.tensors
    with torch.no_grad():
        return float((model(points).argmax(-1) == labels).float().mean())


def main():
    accelerator = Accelerator()
    log = logger(accelerator)
    set_seed(3)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    held_out = loader(52, 8, shuffle=False, seed=7, spread=2.5)
    model, optimizer, train_data, eval_data = accelerator.prepare(model, optimizer, loader(512, 16), held_out)
    for epoch in range(3):
        for points, labels, _ in train_data:
            loss = cross_entropy(model(points), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accuracy, counted = evaluate(accelerator, model, eval_data)
        log.info(
            "epoch %d loss %.4f accuracy %.4f over %d predictions, %d samples",
            epoch,
            loss.item(),
            accuracy,
            counted,
            len(held_out.dataset),
        )
    if accelerator.is_main_process:
        truth = reference_accuracy(accelerator.unwrap_model(model), held_out)
        log.info("accuracy of one process over the same samples %.4f", truth)
        with open("result.json", "w") as file:
            json.dump(
                {"surplus_predictions": counted - len(held_out.dataset), "accuracy_error": abs(accuracy - truth)}, file
            )
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
