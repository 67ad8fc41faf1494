# Taking the API server of our own node away for a while, for tests of what goes on without it. etcd and all else stay.
# shellcheck shell=bash

own_node_api_server() {
    require_root
    is_running etcd || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    case ${1:-} in
        stop) stop_api_server ;;
        start) start_api_server_again ;;
        pause) signal_api_server STOP ;;
        resume) signal_api_server CONT ;;
        *) die "usage: cluster api-server stop|start|pause|resume" ;;
    esac
}

# At once, as a machine that is lost: its watches end without a word.
stop_api_server() {
    signal_api_server KILL
    wait_for 10 "the API server to end" "show_log kube-apiserver" api_server_has_ended
}

api_server_has_ended() {
    ! is_running kube-apiserver
}

start_api_server_again() {
    if is_running kube-apiserver; then
        say "the API server is running"
        return
    fi
    start_api_server
}

# signal_api_server SIGNAL: to the very process that was recorded, and to no other.
signal_api_server() {
    is_running kube-apiserver || die "the API server is not running: start it with '$cluster_folder/cluster api-server start'"
    kill "-$1" "$(process_id kube-apiserver)"
}

users_cluster_api_server() {
    die "the API server of a cluster of yours is not ours to stop"
}
