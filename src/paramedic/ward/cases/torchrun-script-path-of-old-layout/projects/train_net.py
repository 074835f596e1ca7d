import argparse
import logging

import torch
import torch.distributed as dist

logging.basicConfig(format="[%(asctime)s %(name)s]: %(message)s", datefmt="%m/%d %H:%M:%S", level=logging.INFO)
logger = logging.getLogger("detnet")

ap = argparse.ArgumentParser()
ap.add_argument("--max-iter", type=int, default=100)
args = ap.parse_args()

dist.init_process_group(backend="gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 4))
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
for it in range(1, args.max_iter + 1):
    boxes = torch.rand(6, 10)
    loss = torch.nn.functional.smooth_l1_loss(net(boxes), boxes[:, :4])
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if it % 10 == 0:
        logger.info("iter %d  loss_box %.4f", it, loss.item())
logger.info("done, rank %d", dist.get_rank())
dist.destroy_process_group()
