def wrap(model, args, dev):
    if args.wrap == "size":
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=args.min_params)
    else:
        policy = ModuleWrapPolicy({LlamaDecoderLayer})
    mp = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return FSDP(model, auto_wrap_policy=policy, sharding_strategy=ShardingStrategy[args.sharding],
                mixed_precision=mp, device_id=dev, use_orig_params=True, limit_all_gathers=True)
