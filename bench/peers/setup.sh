#!/bin/sh
# Makes a Python environment with PyTorch beside the repository (or at DIR), for the comparisons in bench/.
#   bench/peers/setup.sh [DIR]        default: $HOME/.cache/winnow/peers
set -eu
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/winnow/peers}
if ! python3 -m venv --help >/dev/null 2>&1; then
  echo "python3 with venv is missing: apt-get install python3-venv" >&2
  exit 1
fi
[ -x "$dir/bin/python" ] || python3 -m venv "$dir"
"$dir/bin/python" -m pip install --quiet --upgrade pip
"$dir/bin/python" -m pip install --quiet torch numpy
"$dir/bin/python" -c 'import torch; print("PyTorch", torch.__version__)'
echo "use it with: bench/train --python $dir/bin/python"
