# train_rm.py  (excerpt)
feats, margins = [], []
for step, batch in enumerate(loader):
    batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
    out = engine(**batch, output_hidden_states=True)
    h = out.hidden_states[-1].detach()          # [4, 2048, 4096] bf16
    chosen, rejected = out.reward.chunk(2)
    loss = -F.logsigmoid(chosen - rejected).mean()
    engine.backward(loss)
    engine.step()
    feats.append(h[:, -1])
    margins.append((chosen - rejected).mean().item())
    if step % 200 == 199:
        report(torch.stack(feats[-50:]), margins)
        margins.clear()
