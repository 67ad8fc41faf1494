# Fake nodes for tests with more pods than a machine can run. KWOK manages every node with the annotation
# `kwok.x-k8s.io/node=fake`. A test that creates a fake node must add a taint to the node, so that only pods with a
# toleration can run on the node.
# shellcheck shell=bash

own_node_fake_nodes() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    build_missing_part kwok "tool for fake nodes"
    if is_running kwok; then
        say "KWOK is already running"
        return
    fi
    start_process kwok "$(tool kwok kwok)" \
        --config "$cluster_folder/manifests/fake-nodes/stages.yaml" \
        --kubeconfig "$run_folder/kubeconfig" \
        --manage-nodes-with-annotation-selector kwok.x-k8s.io/node=fake \
        --node-ip "$node_address" \
        --node-lease-duration-seconds 40 \
        --server-address 127.0.0.1:10247
    wait_for 30 "KWOK to respond" "show_log kwok" http_ok 127.0.0.1 10247 /healthz
    say "KWOK is running: pods of fake nodes have the address $node_address"
}

users_cluster_fake_nodes() {
    die "cannot start KWOK on an existing cluster: install KWOK in that cluster"
}
