...
    trainer = SFTTrainer(
        model=model,
        args=sft_args,
        train_dataset=train_ds,
        eval_dataset=eval_ds,
        tokenizer=tok,
        dataset_text_field="text",
        max_seq_length=4096,
        packing=True,
    )
    trainer.train()
...
