import os

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray_classifier import arguments, loop, start_ray


def main():
    args = arguments()
    start_ray(args)
    trainer = TorchTrainer(
        loop,
        train_loop_config={"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(storage_path=os.path.abspath("out"), failure_config=FailureConfig(fail_fast=True)),
    )
    trainer.fit()
    print("training finished", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
