#!/usr/bin/env bash
# A TPU pod slice on Google Cloud: runs the same command on all its machines.
#   TPU=my-slice ZONE=us-central2-b launch/tpu.sh [--dry-run] --config=configs/places.py --workdir=/shared/runs/places
# Needs: gcloud, logged in; an existing slice (gcloud compute tpus tpu-vm create …); on each machine this folder as
# ~/rac_jax with the requirements and pip install "jax[tpu]" of the same version; --workdir on a shared file system
# (Filestore, or a mounted bucket).
# A slice that is preempted gets SIGTERM: all processes finish the same step, save, and exit with code 75. This script
# starts the command again until it ends with another code; on a new slice, run the script again to continue.
set -uo pipefail
: "${TPU:?the name of the slice}" "${ZONE:?its zone}"

dry=
if [[ "${1:-}" == --dry-run ]]; then
  dry=yes
  shift
fi
printf -v remote '%q ' python3 -m rac_jax.main --distributed "$@"
command=(gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="cd ~/rac_jax && $remote")
if [[ $dry ]]; then
  printf '%q ' "${command[@]}"
  echo
  exit
fi
while true; do
  "${command[@]}"
  code=$?
  if [[ $code != 75 ]]; then
    exit $code
  fi
  sleep 60
done
