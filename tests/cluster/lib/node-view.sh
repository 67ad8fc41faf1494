#!/usr/bin/env bash
# node-view.sh RUN-FOLDER DATA-FOLDER COMMAND...: runs the command with a view of the file system of its own.
# It is started in a mount namespace of its own, where the kubelet joins it. All their mounts end with their processes, and
# what they write to fixed places (/run/containerd, /var/lib/cni, /var/log/containers) goes into folders of ours.
set -euo pipefail

run_folder=$1
data_folder=$2
shift 2

# own_folder FOLDER KEPT: an empty folder of ours in the place of FOLDER, in which only KEPT is as it was.
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

# The kubelet sets these for the whole machine, unless they are already as it wants them. It shall believe that they are.
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

# Volumes may ask to see mounts that are made after their pod has started.
mount --make-rshared /
exec "$@"
