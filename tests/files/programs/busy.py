"""Changes files in many ways: its first argument is a directory, the second one a wheel."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

top, wheel = Path(sys.argv[1]), sys.argv[2]
os.chdir(top)
pip = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
subprocess.run([sys.executable, "-m", *pip, "--root-user-action=ignore", "-t", "site", wheel], check=True)
for number in range(20):
    with tempfile.NamedTemporaryFile(dir=".", delete=number % 2 == 0) as temporary:
        temporary.write(b"temporary")
with tempfile.TemporaryDirectory(dir=".") as folder:
    Path(folder, "inside").write_text("inside")
base = sqlite3.connect("base.db")
base.execute("pragma journal_mode=wal")
base.execute("create table t(x)")
base.executemany("insert into t values (?)", [(x,) for x in range(1000)])
base.commit()
base.close()
numpy.save("array.npy", numpy.arange(1000))
mapped = numpy.lib.format.open_memmap("mapped.npy", mode="w+", shape=(1000,))
mapped[:] = 1
mapped.flush()
shell = """
echo 1 >out; echo 2 >>lower-file; tar cf a.tar lower-dir; tar xf a.tar -C moved-here; mv lower-dir renamed
mkdir lower-dir; echo new >lower-dir/new; rm -r lower-gone; rmdir lower-empty; ln lower-link hard
ln -sf out soft; chmod 711 lower-mode; touch -d @5 lower-time; mkfifo pipe; cp -a renamed copied
rm copied/a; : >lower-cut; mv lower-file lower-file2; echo back >lower-file; (cd renamed && echo x >>a)
cat out | tee tee1 tee2 >/dev/null
"""
subprocess.run(["sh", "-ec", shell], check=True)
temporary = Path("checkpoint.tmp")
temporary.write_bytes(b"weights")
temporary.replace("checkpoint")
shutil.copytree("renamed", "tree")
shutil.rmtree("tree")
