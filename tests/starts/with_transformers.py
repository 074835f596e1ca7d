from common import answer
from transformers import TrainingArguments

answer(lambda name, value: TrainingArguments(**({"output_dir": "none", "use_cpu": True, "report_to": []} | value)))
