"""What is freed is used again, without page faults."""

import platform
import subprocess
import sys

import pytest

ROUNDS = """
import ctypes, resource, sys
from oar_lightning.common.allocator import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        block = libc.malloc(ctypes.c_size_t(16 * 2**20))
        ctypes.memset(block, 1, 16 * 2**20)
        libc.free(ctypes.c_void_p(block))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "keep":
    keep_freed_memory()
else:
    libc.mallopt(-1, 128 * 1024)  # glibc's own thresholds, before it adapts them
    libc.mallopt(-3, 128 * 1024)
faults()
print(faults())
"""


def faults(setting: str) -> int:
    run = subprocess.run([sys.executable, "-c", ROUNDS, setting], capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the parameters are those of glibc")
def test_freed_blocks_are_used_again():
    pages = 10 * 16 * 2**20 // 4096
    assert faults("keep") < pages / 100
    assert faults("default") > pages / 100
