ulimit -v 9000000
torchrun --standalone --nproc-per-node 2 probe.py features.f32
