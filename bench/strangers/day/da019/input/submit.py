from ray.train.torch import TorchTrainer
from ray.train import ScalingConfig, RunConfig
from mae.loop import train_loop

trainer = TorchTrainer(
    train_loop,
    train_loop_config=dict(batch_size=128, epochs=400, lr=2.4e-3),
    scaling_config=ScalingConfig(
        num_workers=2,
        use_gpu=True,
        resources_per_worker={"CPU": 8, "GPU": 8},
    ),
    run_config=RunConfig(name="vit_h_mae", storage_path="/mnt/results"),
)
trainer.fit()
