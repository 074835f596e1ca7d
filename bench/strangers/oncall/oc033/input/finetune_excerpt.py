     81  def build(cfg, args):
     82      with deepspeed.zero.Init(config_dict_or_path=args.ds_config):
     83          model = LlamaForCausalLM(cfg)
     84      return model
     85
     86  def main():
     87      args = parse()
     88      deepspeed.init_distributed()
     89      cfg = LlamaConfig.from_pretrained(args.base)
     90      model = build(cfg, args)
     91      sd = torch.load(args.weights, map_location="cpu")
     92      model.load_state_dict(sd)
     93      engine, opt, _, sched = deepspeed.initialize(model=model, config=args.ds_config, model_parameters=model.parameters())
