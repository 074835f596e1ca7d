"""The folder of wheels that the site's mirror holds."""

import zipfile
from pathlib import Path

READ = "def read_shard(seed, rows):\n    import torch\n    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))\n"
STREAM = "from bytepack import pack\n\n\ndef stream(shard, batch):\n    yield from (pack(part) for part in shard.split(batch))\n"
PACK = "def pack(part):\n    return part.contiguous()\n"
WHEELS = [
    ("textshards", "1.8.0", ["bytepack<2"], READ),
    ("textshards", "2.0.0", ["bytepack>=2"], READ),
    ("streamloader", "3.1.0", ["bytepack>=2.1"], STREAM),
    ("bytepack", "1.9.0", [], PACK),
    ("bytepack", "2.2.0", [], PACK),
]

Path("wheels").mkdir()
for name, version, requires, code in WHEELS:
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {r}\n" for r in requires)
    with zipfile.ZipFile(f"wheels/{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", code)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: mirror\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
