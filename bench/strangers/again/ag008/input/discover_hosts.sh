#!/bin/bash
# spot pool + two on-demand
cat /shared/hosts.current
