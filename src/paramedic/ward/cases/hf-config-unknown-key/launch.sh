#!/bin/bash
exec python -m accelerate.commands.launch --config_file accelerate.yaml --main_process_port "$1" hf_fit.py --epochs 2
