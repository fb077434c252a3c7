#!/usr/bin/env bash
# One machine: all its GPUs (or its CPU, if it has none) in one process.
#   launch/local.sh [--dry-run] --config=configs/places.py --workdir=…
# Needs: the requirements; for GPUs also pip install "jax[cuda12]" of the version in requirements.txt.
# Run it again after SIGTERM, Ctrl-C, a crash or kill -9: it continues from the last checkpoint.
set -euo pipefail
cd "$(dirname "$0")/.."

settings=()
set_default() { # NAME VALUE, unless the user has set it
  if [[ -z "${!1:-}" ]]; then
    export "$1=$2"
    settings+=("$1=$2")
  fi
}

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
  set_default JAX_PLATFORMS cuda,cpu # the lookup's callback needs the CPU backend too
  set_default XLA_PYTHON_CLIENT_MEM_FRACTION 0.92 # of each GPU, allocated at the start to avoid fragmentation
  set_default XLA_FLAGS --xla_gpu_enable_latency_hiding_scheduler=true # overlap communication with computation
else
  set_default MALLOC_ARENA_MAX 1 # one heap for all threads: 600 steps of a small model stay at 1,290 MB, not 1,500 rising
fi

if [[ "${1:-}" == --dry-run ]]; then
  shift
  printf '%q ' env "${settings[@]}" python3 -m rac_jax.main "$@"
  echo
  exit
fi
exec python3 -m rac_jax.main "$@"
