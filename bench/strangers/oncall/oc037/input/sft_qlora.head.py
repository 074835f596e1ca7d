import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.3", quantization_config=bnb, device_map={"": 0})
print(f"rank {RANK}: footprint {model.get_memory_footprint()/1e9:.2f} GB, hf_device_map {model.hf_device_map}")
