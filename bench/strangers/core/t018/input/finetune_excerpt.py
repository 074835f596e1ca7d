# finetune.py, lines 274-288
            if (step + 1) % args.save_interval == 0:
                coordinator.print_on_master("Start saving model checkpoint with running states")
                if coordinator.is_master():
                    save_checkpoint(
                        args.save_dir, booster, model, optimizer, lr_scheduler,
                        epoch, step + 1, args.batch_size,
                    )
                coordinator.block_all()
                coordinator.print_on_master(f"Saved checkpoint at epoch {epoch} step {step + 1}")
