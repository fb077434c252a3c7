#!/usr/bin/env bash
# A TPU pod slice on Google Cloud, the same command on all its machines:
#   TPU=my-slice ZONE=us-central2-b launch/tpu.sh [--dry-run] --config=configs/places.py --workdir=/shared/runs/places
# Needs: gcloud, logged in; a slice that exists (gcloud compute tpus tpu-vm create …); on each machine this folder in
# ~/rac_jax with the requirements and pip install "jax[tpu]" of the same version; --workdir on a file system that they
# share (Filestore, or a bucket that is mounted).
# A slice that is taken back is sent SIGTERM: all processes finish the same step, save, and exit with 75. Run this again, on
# a new slice, and it goes on from there. Here it is run again until the code is another one.
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
