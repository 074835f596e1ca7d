    if args.resume:
        print(f"rank {args.rank}: resuming from {args.resume} ({os.path.getsize(args.resume)/1e9:.2f} GB)", force=True)
        checkpoint = torch.load(args.resume)
        model_without_ddp.load_state_dict(checkpoint["model"])
        if not args.eval and "optimizer" in checkpoint:
            optimizer.load_state_dict(checkpoint["optimizer"])
            lr_scheduler.load_state_dict(checkpoint["lr_scheduler"])
            args.start_epoch = checkpoint["epoch"] + 1
