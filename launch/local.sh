#!/usr/bin/env bash
# One machine, all its GPUs (or, without any, its CPU): launch/local.sh --config=configs/places.py --workdir=…
# Needs: the requirements; for GPUs also pip install "jax[cuda12]" of the version in requirements.txt.
set -euo pipefail
cd "$(dirname "$0")/.."

if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
  export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda,cpu}" # the lookup's callback needs the CPU backend too
  export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.92}"
else
  export GLIBC_TUNABLES="${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}" # fewer page faults
fi
exec python3 -m rac_jax.main "$@"
