@register_model("joint_st")
class JointST(BaseFairseqModel):
    @classmethod
    def build_model(cls, cfg, task):
        t0 = time.time()
        state = torch.load(cfg.speech_encoder)          # saved from the ft run
        enc = XlsrEncoder(cfg.enc)
        enc.load_state_dict(state["model"], strict=False)
        print(f"loading speech encoder {cfg.speech_encoder} ... done in {time.time()-t0:.1f}s")
        cls._enc_state = state                          # used by reset_adapters()
        return cls(cfg, enc, TransformerDecoder(cfg.dec, task.tgt_dict))
