# rl_train.py, lines 60-96
def latest(d):
    c = sorted(glob.glob(f"{d}/ckpt_*.pt"), key=lambda p: int(p.split("_")[-1][:-3]))
    return c[-1] if c else None

def main():
    policy = Policy().cuda()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    step = 0
    p = latest("/scratch/local/ppo")
    if p:
        print(f"[r{rank}] resume {p}", flush=True)
        st = torch.load(p, map_location="cuda")
        policy.load_state_dict(st["policy"]); opt.load_state_dict(st["opt"]); step = st["step"]
    while step < args.updates:
        batch = collect(policy)
        loss = ppo_loss(policy, batch)
        opt.zero_grad(); loss.backward()
        for q in policy.parameters():
            dist.all_reduce(q.grad); q.grad /= world
        opt.step()
