"""The fault lab: real failures of distributed training made on purpose, the truth about them, and cures that are proven."""
