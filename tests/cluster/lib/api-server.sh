# Stops or suspends the API server of a local node for outage tests. etcd and all other processes continue.
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

# Kills the API server. Watches end without a response, as if the API server's machine had failed.
stop_api_server() {
    signal_api_server KILL
    wait_for 10 "the API server to end" "show_log kube-apiserver" api_server_has_ended
}

# The threads of a killed process can keep its sockets open for a moment after its main thread has ended.
api_server_has_ended() {
    ! is_running kube-apiserver && ! (exec 3<>"/dev/tcp/$node_address/6443") 2>/dev/null
}

start_api_server_again() {
    if is_running kube-apiserver; then
        say "the API server is running"
        return
    fi
    start_api_server
}

# signal_api_server SIGNAL: sends a signal to the recorded API server process.
signal_api_server() {
    is_running kube-apiserver || die "the API server is not running: start it with '$cluster_folder/cluster api-server start'"
    kill "-$1" "$(process_id kube-apiserver)"
}

users_cluster_api_server() {
    die "cannot stop the API server of an existing cluster"
}
