#!/bin/sh
# Makes a Python environment with PyTorch beside the repository (or at DIR), for the comparisons in bench/; with --kvpress
# a second one, DIR-kvpress, with kvpress and transformers on top of the first one's PyTorch.
#   bench/peers/setup.sh [--kvpress] [DIR]        default: $HOME/.cache/winnow/peers
set -eu
kvpress=0
[ "${1:-}" = --kvpress ] && kvpress=1 && shift
dir=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/winnow/peers}
if ! python3 -m venv --help >/dev/null 2>&1; then
  echo "python3 with venv is missing: apt-get install python3-venv" >&2
  exit 1
fi
if [ ! -x "$dir/bin/python" ]; then
  python3 -m venv "$dir"
  "$dir/bin/python" -m pip install --quiet --upgrade pip
fi
"$dir/bin/python" -m pip install --quiet torch numpy safetensors
version=$("$dir/bin/python" -c 'import torch; print(torch.__version__.split("+")[0])')
echo "PyTorch $version; use it with: bench/train --python $dir/bin/python"
[ $kvpress = 1 ] || exit 0
second=$dir-kvpress
[ -x "$second/bin/python" ] || python3 -m venv "$second"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
packages "$dir" >"$(packages "$second")/peers.pth"
"$second/bin/python" -m pip install --quiet kvpress "torch==$version" # already there, through the .pth: only kept as it is
"$second/bin/python" -c 'import importlib.metadata as m; print("kvpress", m.version("kvpress"), "transformers", m.version("transformers"))'
echo "use it with: bench/prune/against_kvpress.py --python $second/bin/python"
