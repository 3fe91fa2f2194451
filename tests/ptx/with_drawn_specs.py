"""with_drawn_specs.py SEED COUNT COMMAND ..: runs the command with files of COUNT specs behind it, those of random_specs.py
of this seed whose hooks have at most 60 lines."""

import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "templates"))
import random_specs

MOST_LINES = 60


def main(seed, count, *command):
    with tempfile.TemporaryDirectory() as folder:
        files, number = [], 0
        while len(files) < int(count):
            text, number = random_specs.spec(f"tangents {seed}", number), number + 1
            if text.count("x = ") > MOST_LINES:
                continue
            files.append(pathlib.Path(folder) / f"drawn_{seed}_{number}.lua")
            files[-1].write_text(text)
        return subprocess.run([*command, *files]).returncode


sys.exit(main(*sys.argv[1:]))
