import sys

from transformers import BertConfig, BertForSequenceClassification

config = BertConfig(vocab_size=60, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=3)
BertForSequenceClassification(config).save_pretrained(sys.argv[1])
