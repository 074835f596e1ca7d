"""Write a small BERT classifier to the folder `pretrained`, as a former job or a download would."""

import argparse

from transformers import BertConfig, BertForSequenceClassification

parser = argparse.ArgumentParser()
parser.add_argument("--num_labels", type=int, default=4)
parser.add_argument("--max_shard_size", default="10MB")
args = parser.parse_args()

config = BertConfig(
    vocab_size=200,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=64,
    num_labels=args.num_labels,
)
BertForSequenceClassification(config).save_pretrained("pretrained", max_shard_size=args.max_shard_size)
