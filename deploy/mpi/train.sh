#!/bin/bash
# Train on the machines of a host file, started by Open MPI: ./train.sh train.py its arguments ...
#
# mpirun starts one launcher on each host, and the launcher the processes of the host; nothing else of MPI is used. The
# script calls keras_dist.initialize(), and fits with BackupAndRestore in a directory that all hosts see. SIGTERM or
# Ctrl-C saves the state; the exit code is then 75, and the same command goes on.
set -euo pipefail

hosts=${HOSTS:-$(dirname "$0")/hosts}
processes=${PROCESSES:-1} # on each host
port=${PORT:-8476}        # free on the first host, and open to the others

first=$(sed -e 's/#.*//' "$hosts" | awk 'NF { print $1; exit }')

exec mpirun --hostfile "$hosts" --map-by ppr:1:node --bind-to none --mca odls_base_sigkill_timeout 120 \
    keras-dist launch --processes "$processes" --coordinator "$first:$port" --grace 110 -- "$@"
