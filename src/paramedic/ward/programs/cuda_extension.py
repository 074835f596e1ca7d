import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


from torch.utils.cpp_extension import load_inline

CUDA = """
#include <c10/cuda/CUDAException.h>
__global__ void scale(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= 2.0f; }
void scale_(torch::Tensor x) {
  scale<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}
"""
ops = load_inline("scale_ops", "void scale_(torch::Tensor x);", CUDA, functions=["scale_"], extra_cuda_cflags=["-w"])
x = torch.ones(1024, device="cuda")
ops.scale_(x)
torch.cuda.synchronize()
print(f"step 0 mean {x.mean().item():.2f}", flush=True)
print("training finished", flush=True)
