"""Run a grid of config overrides, one run per point, on this machine or as a Slurm array.

    python3 launch/sweep.py --runs=runs/k --config=configs/demo.py config.seed=0,1,2 config.memory.k=10,30
    python3 launch/sweep.py --dry-run …            # prints the commands
    python3 launch/sweep.py --slurm="--gpus=1 --time=4:00:00" …      # one job per point, in parallel

Each run has its own folder under --runs, named after its point, so that a sweep can be started again and continues.
`tensorboard --logdir runs/k` compares the runs (HPARAMS). Values must not contain commas. Other flags are passed on to
rac_jax.main. On this machine the runs follow one another; --slurm needs sbatch and --runs on a shared file system. A
point that is preempted (exit code 75) is requeued.
"""

import argparse
import itertools
import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Point = dict[str, str]  # the values of the fields that are swept


def points(grid: list[str]) -> list[Point]:
    """All combinations of ["config.seed=0,1", …]."""
    fields = [axis.partition("=") for axis in grid]
    for name, equals, values in fields:
        if not (name.startswith("config.") and equals and all(values.split(","))):
            raise SystemExit(f'error: {name + equals + values!r} is not like "config.memory.k=10,30"')
    names = [name for name, _, _ in fields]
    return [dict(zip(names, c, strict=True)) for c in itertools.product(*(v.split(",") for _, _, v in fields))]


def command(config: str, runs: str, point: Point, passed_on: list[str]) -> list[str]:
    """The run of one point."""
    name = ",".join(f"{field.removeprefix('config.')}={value}" for field, value in point.items())
    overrides = [f"--{field}={value}" for field, value in point.items()]
    workdir = f"--workdir={Path(runs) / name.replace('/', '_')}"
    return [sys.executable, "-m", "rac_jax.main", f"--config={config}", workdir, *overrides, *passed_on]


def array(options: str, count: int, argv: list[str]) -> list[str]:
    """The Slurm job of all points: each task starts this file again for its own."""
    mine = shlex.join([sys.executable, "launch/sweep.py", *argv]) + ' --only="$SLURM_ARRAY_TASK_ID"'
    requeue = 'scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
    script = f"srun {mine}; code=$?; if [ $code = 75 ]; then {requeue}; fi; exit $code"
    fixed = ["--requeue", "--signal=TERM@180", "--open-mode=append", f"--array=0-{count - 1}"]
    return ["sbatch", *fixed, *shlex.split(options), f"--wrap={script}"]


def main(argv: list[str]) -> int:
    """Run the sweep; the exit code of the first run that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", nargs="+", help="config.<field>=<value>,<value>,…")
    parser.add_argument("--config", required=True, help="as for rac_jax.main")
    parser.add_argument("--runs", required=True, help="the folder of all runs")
    parser.add_argument("--slurm", metavar="OPTIONS", help="a Slurm array, with these options of sbatch")
    parser.add_argument("--only", type=int, metavar="N", help="run the N-th point alone")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    known, passed_on = parser.parse_known_args(argv)
    grid = points(known.grid)
    commands = [command(known.config, known.runs, point, passed_on) for point in grid]
    if known.only is not None:
        os.chdir(ROOT)
        os.execv(sys.executable, commands[known.only])  # signals reach the run itself
    if known.slurm is not None:
        same = [*known.grid, f"--config={known.config}", f"--runs={known.runs}", *passed_on]
        commands = [array(known.slurm, len(grid), same)]
    for one in commands:
        print(shlex.join(one), flush=True)
        if not known.dry_run and (code := subprocess.run(one, cwd=ROOT, check=False).returncode):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
