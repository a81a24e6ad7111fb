#!/bin/sh
# The kernel's tests with AddressSanitizer and UndefinedBehaviorSanitizer built in: tools/sanitize.sh [python] [more words for pytest]
# Reads and writes beyond a tensor, misaligned vectors, overflow and use after free end the run. Needs gcc's libasan.
set -eu
python=${1:-.venv/bin/python}
[ $# -gt 0 ] && shift
cxx=${CXX:-c++}
export COURSE_NATIVE_FLAGS="-O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all"
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=1"  # Python itself never frees everything
export LD_PRELOAD="$($cxx -print-file-name=libasan.so) $($cxx -print-file-name=libstdc++.so.6)"
# left out: what builds other variants, what starts compilers, and PyTorch's own machinery
exec "$python" -m pytest tests/native/test_lenet.py tests/native/test_norm.py -q -k "not processes and not width and not compiler and not accelerated and not transformations" "$@"
