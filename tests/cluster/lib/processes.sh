# Starts and terminates the local node's processes. The scripts start each process in one of the cluster's cgroups,
# record the process ID and the start time, and terminate only recorded processes and their descendants.
# shellcheck shell=bash

# Prints the mounted cgroup hierarchies. cgroup v2 has one hierarchy, and cgroup v1 has one hierarchy per controller.
cgroup_hierarchies() {
    awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts
}

# Prints the cgroup that identifies the daemons. The kubelet's cgroupRoot setting places pods in the cluster's cgroups
# in every hierarchy.
daemon_cgroup() {
    local hierarchies wanted
    hierarchies=$(cgroup_hierarchies)
    for wanted in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/pids /sys/fs/cgroup/systemd; do
        if grep -qx "$wanted" <<<"$hierarchies"; then
            printf '%s/%s/daemons' "$wanted" "$cluster_name"
            return
        fi
    done
    die "no cgroups are mounted below /sys/fs/cgroup: a node cannot run here. Select an existing cluster with TEST_KUBECONFIG"
}

# Tested with v1 and a "unified" mount. Pure v2 is untested.
create_cgroups() {
    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        mkdir -p "$hierarchy/$cluster_name" ||
            die "failed to create the cgroup $hierarchy/$cluster_name: cgroups are not writable here. Select an existing cluster with TEST_KUBECONFIG"
        share_controllers "$hierarchy"
    done
    mkdir -p "$(daemon_cgroup)"
}

# share_controllers HIERARCHY: prepares a new cgroup for pods.
share_controllers() {
    local hierarchy=$1 setting controller
    # With v1, a new cpuset is empty.
    for setting in cpuset.mems cpuset.cpus; do
        [[ ! -e $hierarchy/$cluster_name/$setting ]] || cat "$hierarchy/$setting" >"$hierarchy/$cluster_name/$setting"
    done
    # With v2, a child cgroup's controllers must be enabled in the parent cgroup.
    [[ $hierarchy == /sys/fs/cgroup ]] || return 0
    for controller in $(<"$hierarchy/cgroup.controllers"); do
        { echo "+$controller" >"$hierarchy/cgroup.subtree_control"; } 2>/dev/null || true
        { echo "+$controller" >"$hierarchy/$cluster_name/cgroup.subtree_control"; } 2>/dev/null || true
    done
}

# start_time_of PID: prints the start time of a process in clock ticks since boot. The ID and the start time together
# identify a process.
start_time_of() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    # The name in parentheses can contain spaces, so the function counts the fields from the end of the name.
    local -a fields
    read -ra fields <<<"${stat##*) }"
    # A zombie has ended.
    [[ ${fields[0]} != Z ]] || return 1
    printf '%s' "${fields[19]}"
}

# start_process NAME COMMAND...: starts a background process in the cluster's network, detached from the terminal. GOGC
# reduces the CPU time that Go's garbage collector uses, because CPU time is scarcer than memory. With thousands of objects,
# the API server would need five times its live memory, so GOMEMLIMIT increases the CPU time above this limit.
start_process() {
    local name=$1
    shift
    mkdir -p "$run_folder/processes" "$run_folder/logs"
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' start "$(daemon_cgroup)" \
        nsenter --net="/run/netns/$cluster_name" env GOGC=400 GOMEMLIMIT=12GiB "$@" \
        </dev/null >"$run_folder/logs/$name.log" 2>&1 9>&- &
    disown
    printf '%s %s\n' "$!" "$(start_time_of "$!")" >"$run_folder/processes/$name"
}

# keep_running NAME COMMAND...: starts a process, and restarts the process when it exits. For example, the scheduler
# exits if its cache is inconsistent after an API server outage. In other clusters, the kubelet restarts the scheduler.
keep_running() {
    local name=$1
    shift
    # shellcheck disable=SC2016 # expanded by the inner shell
    start_process "$name" bash -c 'while true; do "$@"; echo "ended with $?; restarting"; sleep 1; done' keep "$@"
}

# is_running NAME: succeeds if the recorded process is running.
is_running() {
    local pid started
    read -r pid started 2>/dev/null <"$run_folder/processes/$1" || return 1
    [[ $(start_time_of "$pid") == "$started" ]]
}

process_id() {
    local pid rest
    read -r pid rest <"$run_folder/processes/$1"
    printf '%s' "$pid"
}

show_log() {
    say "  last lines of $run_folder/logs/$1.log:"
    tail -n 12 "$run_folder/logs/$1.log" 2>/dev/null | cut -c 1-400 | sed 's/^/    /' || true
}

# Terminates the recorded processes and all their descendants. Shims and pods are also in the cluster's cgroups.
end_processes() {
    local file pid started
    for file in "$run_folder"/processes/*; do
        [[ -f $file ]] || continue
        read -r pid started <"$file"
        [[ $(start_time_of "$pid") != "$started" ]] || kill -KILL "$pid" 2>/dev/null || true
    done
    local deadline=$(($(now) + 20000)) pids
    while pids=$(processes_in_our_cgroups) && [[ -n $pids ]]; do
        # shellcheck disable=SC2086 # a list
        kill -KILL $pids 2>/dev/null || true
        (($(now) < deadline)) || die "processes of the cluster do not end: ${pids//$'\n'/ }. Inspect them with 'ps -o pid,stat,wchan,args -p ${pids//$'\n'/,}'"
        sleep 0.05
    done
}

processes_in_our_cgroups() {
    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        [[ -d $hierarchy/$cluster_name ]] || continue
        find "$hierarchy/$cluster_name" -name cgroup.procs -exec cat {} + 2>/dev/null || true
    done | sort -un
}

remove_cgroups() {
    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        [[ -d $hierarchy/$cluster_name ]] || continue
        # A cgroup remains busy for a moment after its last process has exited.
        wait_for 10 "the cgroup $hierarchy/$cluster_name to become empty" "find $hierarchy/$cluster_name -type d" \
            remove_cgroup "$hierarchy/$cluster_name"
    done
}

remove_cgroup() {
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [[ ! -d $1 ]]
}
