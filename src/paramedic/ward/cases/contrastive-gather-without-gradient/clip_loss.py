"""Symmetric cross-entropy between two views, with the views of all ranks as candidates."""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def gather_features(features):
    out = [torch.empty_like(features) for _ in range(dist.get_world_size())]
    dist.all_gather(out, features.contiguous())
    return torch.cat(out)


def clip_loss(image, text, scale):
    """Rows of this rank against the candidates of all ranks."""
    n = len(image)
    target = torch.arange(n) + dist.get_rank() * n
    logits_image = scale * image @ gather_features(text).T
    logits_text = scale * text @ gather_features(image).T
    return (F.cross_entropy(logits_image, target) + F.cross_entropy(logits_text, target)) / 2


def clip_loss_one_process(image, text, scale):
    target = torch.arange(len(image))
    logits = scale * image @ text.T
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
