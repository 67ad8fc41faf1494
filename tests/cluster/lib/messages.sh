# Messages for users. The scripts print messages to stderr, because the stdout of `env`, `exec` and `kubectl` must
# contain only results.
# shellcheck shell=bash

# Prefix of the messages. Each script sets its own prefix.
program=cluster

say() {
    printf '%s\n' "$*" >&2
}

die() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 1
}

# Prints the current time in milliseconds.
now() {
    local microseconds=${EPOCHREALTIME//[!0-9]/}
    printf '%s' "$((microseconds / 1000))"
}

# seconds_since START: prints a duration such as "3.2".
seconds_since() {
    local tenths=$((($(now) - $1 + 50) / 100))
    printf '%d.%d' "$((tenths / 10))" "$((tenths % 10))"
}

# step DESCRIPTION COMMAND...: runs the command, and prints the description and the duration.
step() {
    local description=$1 start
    shift
    start=$(now)
    "$@"
    printf '%7s s  %s\n' "$(seconds_since "$start")" "$description" >&2
}

# quietly COMMAND...: runs the command, and prints its output only if the command fails.
quietly() {
    local output result
    # The command is not part of an `if` or `||`, because bash would then ignore `set -e` in a function.
    set +e
    output=$(
        set -e
        "$@" 2>&1
    )
    result=$?
    set -e
    if ((result != 0)); then
        say "$output"
        die "failed: $*"
    fi
}

# wait_for SECONDS WHAT EXPLAIN CHECK...: polls the command CHECK until CHECK succeeds. After the timeout, prints the
# output of the command EXPLAIN, which is a single argument, and fails.
wait_for() {
    local limit=$1 what=$2 explain=$3 deadline
    shift 3
    deadline=$(($(now) + limit * 1000))
    until "$@" >/dev/null 2>&1; do
        if (($(now) > deadline)); then
            say "$program: timed out after $limit seconds while waiting for $what. The state:"
            $explain >&2 || true
            exit 1
        fi
        sleep 0.1
    done
}

require_root() {
    ((EUID == 0)) || die "the local node needs root (network namespaces, mounts, cgroups): run this command as root, or select an existing cluster with TEST_KUBECONFIG"
}
