import argparse
import json
import os
import subprocess
import sys

parser = argparse.ArgumentParser()
parser.add_argument("--base-port", type=int)
parser.add_argument("--workers", type=int)
parser.add_argument("script")
opt = parser.parse_args()

hosts = [f"localhost:{opt.base_port + n}" for n in range(opt.workers)]
children = []
for n in range(opt.workers):
    config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": n}}
    env = dict(os.environ, TF_CONFIG=str(config), TF_CPP_MIN_LOG_LEVEL="1")
    children.append(subprocess.Popen([sys.executable, opt.script], env=env))
codes = [child.wait() for child in children]
print(json.dumps({"exit_codes": codes}))
sys.exit(max(map(abs, codes)))
