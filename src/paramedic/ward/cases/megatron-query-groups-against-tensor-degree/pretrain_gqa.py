"""Grouped-query variant of our GPT."""
import argparse
import sys

import megatron_gpt as base
import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

parser = argparse.ArgumentParser()
parser.add_argument("--num-query-groups", type=int, required=True)
own, rest = parser.parse_known_args()
args = base.arguments(["--tensor-model-parallel-size", "2", "--hidden-size", "48", "--num-attention-heads", "6", "--train-iters", "4", *rest])


def transformer_config(args):
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=own.num_query_groups,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        pipeline_dtype=torch.float32,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


base.transformer_config = transformer_config
base.initialize(args)
model = base.build_model(args)
base.log.info("config ok: %d query groups", own.num_query_groups)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
data = base.batches(args, parallel_state.get_data_parallel_rank())
for iteration in range(1, args.train_iters + 1):
    loss = base.train_step(model, optimizer, data)
    base.report(iteration, args, loss)
base.finish()
sys.exit(0)
