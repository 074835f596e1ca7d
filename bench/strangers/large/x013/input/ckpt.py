def save(model, path, rank):
    sd = {}
    for k, v in model.state_dict().items():
        sd[k] = (v.to_local() if isinstance(v, DTensor) else v).cpu()
    if rank == 0:
        os.makedirs(path, exist_ok=True)
        torch.save(sd, os.path.join(path, "model.pt"))
        print(f"{now()} saved {path}/model.pt ({len(sd)} tensors) in ...")
    dist.barrier()
