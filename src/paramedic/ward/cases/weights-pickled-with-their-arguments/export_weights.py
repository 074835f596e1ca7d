"""What the authors of the encoder put on their page."""

import argparse

import torch

torch.manual_seed(5)
encoder = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.Linear(20, 8))
args = argparse.Namespace(arch="enc_s", epochs=800, lr=1.5e-4)
torch.save({"model": encoder.state_dict(), "args": args, "epoch": 799}, "checkpoints/enc_s_800ep.pth")
