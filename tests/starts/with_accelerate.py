import subprocess
import sys
import tempfile
from pathlib import Path

from common import answer


def start(name, value):
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text("print('ran')\n")
        Path(folder, "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1}')
        command = value.split()[1:] if value.startswith("accelerate ") else ["launch", "--config_file", value, "program.py"]
        command = [word if word != "train.py" else "program.py" for word in command]
        tool = "from accelerate.commands.accelerate_cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", tool, *command], capture_output=True, text=True, cwd=folder, timeout=240, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise RuntimeError(next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "?"))


answer(start)
