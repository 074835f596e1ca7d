"""The fault lab: real failures of distributed training made on purpose, with the truth about them and proven cures."""
