import torch
import torch.distributed as dist
from chatlm import ChatLM, encode, load_tokens

TEXT = "the quick brown fox jumps over the lazy dog"

dist.init_process_group("gloo")
rank = dist.get_rank()
tokens = load_tokens("vocab.txt")
model = torch.nn.parallel.DistributedDataParallel(ChatLM(vocab_size=96))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
if rank == 0:
    print(f"{len(tokens)} tokens, {sum(p.numel() for p in model.parameters())} parameters", flush=True)
for step in range(12):
    is_dialogue = rank == 1 and step >= 4  # the second dump mixes prose and chats
    ids = torch.tensor([encode(tokens, TEXT, is_dialogue) for _ in range(4)])
    loss = model(ids)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"[rank{rank}] step {step} nll {loss.item():.3f}", flush=True)
dist.destroy_process_group()
