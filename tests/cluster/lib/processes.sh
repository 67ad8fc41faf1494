# The processes of our own node: started into a cgroup of ours, recorded by id and start time, and ended by these alone.
# shellcheck shell=bash

# Every cgroup hierarchy that is mounted: one on cgroup v2, one per controller on v1.
cgroup_hierarchies() {
    awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts
}

# The one hierarchy that our own processes are told apart by. Pods have cgroups of ours in every hierarchy, by the kubelet's cgroupRoot.
daemon_cgroup() {
    local hierarchies wanted
    hierarchies=$(cgroup_hierarchies)
    for wanted in /sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/pids /sys/fs/cgroup/systemd; do
        if grep -qx "$wanted" <<<"$hierarchies"; then
            printf '%s/%s/daemons' "$wanted" "$cluster_name"
            return
        fi
    done
    die "no cgroups are mounted below /sys/fs/cgroup: a node cannot run here. Name a cluster of yours with TEST_KUBECONFIG."
}

# Proven under v1 with a "unified" mount beside it; pure v2 is written for, but untested.
create_cgroups() {
    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        mkdir -p "$hierarchy/$cluster_name" ||
            die "cannot make the cgroup $hierarchy/$cluster_name: cgroups are not writable here. Name a cluster of yours with TEST_KUBECONFIG."
        share_controllers "$hierarchy"
    done
    mkdir -p "$(daemon_cgroup)"
}

# share_controllers HIERARCHY: what a new cgroup needs from its parent before it can hold pods.
share_controllers() {
    local hierarchy=$1 setting controller
    # v1: a cpuset is empty at first.
    for setting in cpuset.mems cpuset.cpus; do
        [[ ! -e $hierarchy/$cluster_name/$setting ]] || cat "$hierarchy/$setting" >"$hierarchy/$cluster_name/$setting"
    done
    # v2: a parent names the controllers that its children have.
    [[ $hierarchy == /sys/fs/cgroup ]] || return 0
    for controller in $(<"$hierarchy/cgroup.controllers"); do
        { echo "+$controller" >"$hierarchy/cgroup.subtree_control"; } 2>/dev/null || true
        { echo "+$controller" >"$hierarchy/$cluster_name/cgroup.subtree_control"; } 2>/dev/null || true
    done
}

# The time a process started, in clock ticks since boot: with it, a process id means one process for ever.
start_time_of() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
    # The name in parentheses may hold spaces: fields are counted from its end.
    local -a fields
    read -ra fields <<<"${stat##*) }"
    # A zombie has ended.
    [[ ${fields[0]} != Z ]] || return 1
    printf '%s' "${fields[19]}"
}

# start_process NAME COMMAND...: in the background, in the cluster's network, detached from the terminal.
start_process() {
    local name=$1
    shift
    mkdir -p "$run_folder/processes" "$run_folder/logs"
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid bash -c 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"' start "$(daemon_cgroup)" \
        nsenter --net="/run/netns/$cluster_name" "$@" \
        </dev/null >"$run_folder/logs/$name.log" 2>&1 9>&- &
    disown
    printf '%s %s\n' "$!" "$(start_time_of "$!")" >"$run_folder/processes/$name"
}

# keep_running NAME COMMAND...: the same, and it is started again when it ends. The scheduler ends itself when it does not trust what
# it remembers any more, as it may after the API server was away; elsewhere the kubelet starts it again.
keep_running() {
    local name=$1
    shift
    # shellcheck disable=SC2016 # expanded by the inner shell
    start_process "$name" bash -c 'while true; do "$@"; echo "ended with $?, and is started again"; sleep 1; done' keep "$@"
}

# is_running NAME: the very process that was recorded.
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

# Ends what was recorded and all that ever came from it: shims and pods are in cgroups of ours too.
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
        (($(now) < deadline)) || die "these processes of the cluster do not end: ${pids//$'\n'/ }. Look with: ps -o pid,stat,wchan,args -p ${pids//$'\n'/,}"
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
        # A cgroup stays busy for a moment after its last process ended.
        wait_for 10 "the cgroup $hierarchy/$cluster_name to become empty" "find $hierarchy/$cluster_name -type d" \
            remove_cgroup "$hierarchy/$cluster_name"
    done
}

remove_cgroup() {
    find "$1" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [[ ! -d $1 ]]
}
