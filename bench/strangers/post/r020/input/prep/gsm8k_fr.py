def make_map_fn(split):
    def process_fn(example, idx):
        question = example.pop("question_fr") + " " + instruction_following
        answer_raw = example.pop("answer")
        solution = "#### " + answer_raw.split("#### ")[1].replace(",", "")
        return {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": solution},
            "extra_info": {"split": split, "index": idx},
        }
    return process_fn
