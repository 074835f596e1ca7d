from ray.train.torch import TorchTrainer
from ray.train import ScalingConfig, RunConfig
from ctr.loop import train_loop

trainer = TorchTrainer(
    train_loop,
    train_loop_config={"lr": 3e-5, "bs": 64, "epochs": 3},
    scaling_config=ScalingConfig(num_workers=16, use_gpu=True),
    run_config=RunConfig(name="bert_ctr", storage_path="/mnt/shared/ray_results"),
)
print(trainer.fit())
