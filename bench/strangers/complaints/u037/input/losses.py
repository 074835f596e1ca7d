import torch
import torch.distributed as dist
import torch.nn.functional as F


def losses(out, targets):
    rpn = out["rpn_cls"] + out["rpn_box"]
    roi = out["roi_cls"] + out["roi_box"]
    boxes = [t["boxes"] for t in targets]
    total = rpn + roi
    if sum(len(b) for b in boxes) == 0:
        return total + 0.0 * out["mask_logits"].sum()

    gt = torch.cat([t["masks"] for t in targets]).float()
    sel = out["mask_match"]
    m = F.binary_cross_entropy_with_logits(out["mask_logits"], gt[sel], reduction="none")
    npos = torch.tensor([float(sel.numel())], device=m.device)
    dist.all_reduce(npos)
    npos = npos / dist.get_world_size()
    return total + m.sum() / npos.clamp(min=1)
