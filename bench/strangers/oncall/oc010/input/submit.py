# submit.py
import ray
from ray.train import ScalingConfig, RunConfig
from ray.train.torch import TorchTrainer
from loop import train_loop

scaling = ScalingConfig(num_workers=16, use_gpu=True, resources_per_worker={"CPU": 24, "GPU": 1})
print(scaling)
trainer = TorchTrainer(train_loop, train_loop_config={"lr": 1e-4, "batch_size": 64, "max_steps": 250_000},
    scaling_config=scaling, run_config=RunConfig(name="bert-mlm-16", storage_path="/mnt/efs/ray_results"))
trainer.fit()
