import os

import torch
import torch.distributed as dist
from colossal_classifier import arguments, build_data, build_model, finish, log, start, train_epoch
from torch import nn

CHECKPOINT = "checkpoints/model.pt"


def main():
    args = arguments()
    booster = start(args)
    model, criterion = build_model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = booster.plugin.prepare_dataloader(build_data(args), batch_size=args.batch_size, shuffle=True)
    model, optimizer, criterion, loader, _ = booster.boost(model, optimizer, criterion, loader)
    if os.path.exists(CHECKPOINT):
        booster.load_model(model, CHECKPOINT)
        log.info("resumed from %s", CHECKPOINT)
    dist.barrier()
    for epoch in range(args.epochs):
        train_epoch(epoch, booster, model, optimizer, criterion, loader)
        if dist.get_rank() == 0:
            torch.save(model.state_dict(), CHECKPOINT)
    finish()


if __name__ == "__main__":
    main()
