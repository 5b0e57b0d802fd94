#!/usr/bin/env bash
# Builds the tables and hashed bags of a GPU, and checks and times them on the first GPU of this machine.
#
# It needs g++, cmake, NVIDIA's driver, NVRTC (of CUDA or of nvidia-cuda-nvrtc-cu12), and python3
# with torch for the figures; neither TensorFlow nor RocksDB. Usage:
#
#   scripts/gpu_check.sh [FOLDER]     logs and gpu.json go to FOLDER; build/gpu-check by default
#
# QUICK=1 leaves out the sanitizers and the table of 10^8 rows.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-build/gpu-check}")
mkdir -p "$out"
failed=()

part() {
  local name=$1 begin=$SECONDS
  shift
  if "$@" >"$out/$name.log" 2>&1; then
    echo "$name: passed ($((SECONDS - begin)) s)"
  else
    echo "$name: FAILED ($((SECONDS - begin)) s), see $out/$name.log"
    failed+=("$name")
  fi
  tail -n "${LINES_SHOWN:-4}" "$out/$name.log"
}

if [ -z "${SOK_NVRTC:-}" ]; then
  # The loader does not look into Python's packages.
  SOK_NVRTC=$(python3 - <<'PYTHON'
import glob, site, sys
folders = [*site.getsitepackages(), *(path for path in sys.path if path.endswith("-packages"))]
found = [name for folder in folders for name in sorted(glob.glob(
    f"{folder}/nvidia/*/lib/libnvrtc.so.1[23]"))]
print(found[-1] if found else "")
PYTHON
)
fi
for place in /usr/local/cuda/lib64/libnvrtc.so.1[23]; do
  [ -z "$SOK_NVRTC" ] && [ -e "$place" ] && SOK_NVRTC=$place
done
[ -n "$SOK_NVRTC" ] && export SOK_NVRTC
export XDG_CACHE_HOME="$out/cache"

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
echo "NVRTC: ${SOK_NVRTC:-of the loader}, $(date -u +%F)"
build() {
  cmake -S tf_ops/core/gpu -B build/gpu && cmake --build build/gpu --parallel "$(nproc)"
}
LINES_SHOWN=1 part build build
LINES_SHOWN=40 part programs build/gpu/sok_gpu_check "${OPERATIONS:-100}"
if [ -z "${QUICK:-}" ] && command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck; do
    part "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 build/gpu/sok_gpu_check 6 3
  done
fi
rows=100000000
[ -n "${QUICK:-}" ] && rows=4000000
LINES_SHOWN=20 part figures python3 benchmarks/gpu.py --library build/gpu/libsok_gpu.so \
  --json "$out/gpu.json" --rows "$rows"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
