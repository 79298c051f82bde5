#!/usr/bin/env bash
# One run on a Slurm allocation: Ray's head and the driver on the first node, a Ray worker on each other node.
#
#   sbatch --nodes=4 deploy/slurm.sh /shared/my.yaml
#
# All nodes must see one file system with the environment (CURATION_VENV), the configuration, run_dir and local models.
# Before the time limit, and where the partition preempts, Slurm sends SIGTERM; the script ends the run and puts the job
# back into the queue under the same id. Started again it gives the same command, which goes on from what is committed.
#
#SBATCH --job-name=curation
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -euo pipefail

config=${1:?usage: sbatch deploy/slurm.sh CONFIG}
: "${CURATION_VENV:=$HOME/trust-curation/.venv}"
: "${CURATION_START_SECONDS:=300}" # how long Ray may take to come up on all nodes
export PATH="$CURATION_VENV/bin:$PATH"

# A password of this job's own: other users of the nodes cannot talk to its Ray. srun hands the environment on.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # srun does not take sbatch's --cpus-per-task, since Slurm 22.05
unset RAY_ADDRESS

# The first node is this one. Its name may stand for its loopback address, so that its first network address is taken;
# CURATION_HEAD_IP names another. Ports from 10000 on are for Ray's workers; each job of a node has a port of its own.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
: "${CURATION_HEAD_IP:=$(hostname -I | awk '{print $1}')}"
address=$CURATION_HEAD_IP:$((6380 + SLURM_JOB_ID % 3000))

start_ray() { # how many nodes, srun's choice of nodes, options of `ray start`
    local count=$1 where=$2
    shift 2
    srun --nodes="$count" --ntasks="$count" "$where" ray start "$@" \
        --num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --block &
}

start_ray 1 --nodelist="$head" --head --node-ip-address="${address%:*}" --port="${address#*:}" --include-dashboard=false
deadline=$((SECONDS + CURATION_START_SECONDS))
until timeout --signal=KILL 30 ray health-check --address "$address" 2>/dev/null; do
    if ((SECONDS > deadline)); then
        echo "slurm.sh: Ray's head did not come up at $address in $CURATION_START_SECONDS s" >&2
        exit 1
    fi
    sleep 2
done
if ((SLURM_NNODES > 1)); then
    start_ray $((SLURM_NNODES - 1)) --exclude="$head" --address="$address"
fi
# `curate run` refuses a cluster that has no room for it, so that all nodes must be there first.
python - "$address" "$SLURM_NNODES" "$CURATION_START_SECONDS" <<'PYTHON'
import sys, time
import ray

address, wanted, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
end = time.monotonic() + seconds
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > end:
        sys.exit(f"slurm.sh: {there} of {wanted} nodes joined in {seconds:g} s")
    time.sleep(1)
PYTHON

curate run "$config" --address "$address" &
driver=$!
told_to_stop=false
trap 'told_to_stop=true; kill -TERM "$driver" 2>/dev/null || true' TERM
status=0
wait "$driver" || status=$?
if $told_to_stop; then
    wait "$driver" || true # the first wait ended with the signal
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$status"
