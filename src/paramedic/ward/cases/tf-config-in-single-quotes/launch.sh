#!/bin/bash
exec python spawn_workers.py --base-port "$1" --workers 2 mnist_like.py
