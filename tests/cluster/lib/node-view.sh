#!/usr/bin/env bash
# node-view.sh RUN-DIRECTORY DATA-DIRECTORY COMMAND...: runs the command with a private view of the file system. The
# caller starts this script in a new mount namespace, which the kubelet joins later. The kernel removes all mounts when
# the processes exit. Writes to fixed paths (/run/containerd, /var/lib/cni, /var/log/containers) go to the cluster's
# directories.
set -euo pipefail

run_folder=$1
data_folder=$2
shift 2

# own_folder DIRECTORY KEPT: replaces DIRECTORY with an empty private directory in which only KEPT is visible.
own_folder() {
    local folder=$1 kept=$2 ours=$data_folder/node-view$1
    mkdir -p "$ours"
    if [[ -n $kept ]]; then
        mkdir -p "$ours/${kept#"$folder"/}"
        mount --rbind "$kept" "$ours/${kept#"$folder"/}"
    fi
    mount --rbind "$ours" "$folder"
}

own_folder /var/log ""
own_folder /run "$run_folder"
own_folder /var/lib "$data_folder"

# The kubelet changes these machine-wide settings if they differ from the values that it expects. The bind mounts show
# the expected values to the kubelet.
show_setting() {
    local shown
    shown=$run_folder/settings/${1//\//.}
    mkdir -p "$run_folder/settings"
    printf '%s\n' "$2" >"$shown"
    mount --bind "$shown" "/proc/sys/$1"
}
show_setting vm/overcommit_memory 1
show_setting vm/panic_on_oom 0
show_setting kernel/panic 10
show_setting kernel/panic_on_oops 1
show_setting kernel/keys/root_maxkeys 1000000
show_setting kernel/keys/root_maxbytes 25000000

# A pod volume can request mounts that appear after the pod has started.
mount --make-rshared /
exec "$@"
