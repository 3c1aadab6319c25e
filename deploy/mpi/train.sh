#!/bin/bash
# Train on the machines of a host file, started by Open MPI: ./train.sh train.py its arguments ...
#
# mpirun starts one launcher on each host, and the launcher the processes of the host; nothing else of MPI is used. The
# script calls keras_dist.initialize(), and fits with BackupAndRestore in a directory that all hosts see. SIGTERM or
# Ctrl-C to this script saves the state, within $grace seconds. It exits with 75 about 10 s later, and the same command
# resumes. A signal to mpirun itself has no effect.
set -euo pipefail

hosts=${HOSTS:-$(dirname "$0")/hosts}
processes=${PROCESSES:-1} # on each host
port=${PORT:-8476}        # free on the first host, and open to the others
grace=110

first=$(sed -e 's/#.*//' "$hosts" | awk 'NF { print $1; exit }')

# mpirun ends the job at the first exit code other than 0. So the 75 after a save is that of the first host alone.
# shellcheck disable=SC2016
launcher='trap : TERM USR1; code=0; "$@" || code=$?
[ "$code" -ne 75 ] || [ "$OMPI_COMM_WORLD_RANK" -eq 0 ] || code=0; exit "$code"'

# To end a job, mpirun sends SIGCONT, SIGTERM and SIGKILL, each odls_base_sigkill_timeout after the other, and waits so
# long even if nothing runs. A SIGTERM to it does the same, which leaves no time for a save, and exits with 1. SIGUSR1 it
# forwards, and to the launchers that is a SIGTERM. (env --block-signal is of GNU coreutils 8.31.)
env --block-signal=HUP,INT,TERM mpirun --hostfile "$hosts" --map-by ppr:1:node --bind-to none \
    --mca odls_base_sigkill_timeout 5 \
    bash -c "$launcher" launcher keras-dist launch --processes "$processes" --coordinator "$first:$port" \
    --grace "$grace" -- "$@" &
mpirun=$!

save() {
    echo "train.sh: the job saves its state within $grace s; the exit code is then 75" >&2
    kill -USR1 "$mpirun"
}
trap save HUP INT TERM
while kill -0 "$mpirun" 2>/dev/null; do
    wait "$mpirun" || true # a signal ends the wait
done
wait "$mpirun"
