# Starts and stops the local node.
# shellcheck shell=bash

own_node_up() {
    require_root
    install_packages
    build_images
    render_flux
    if [[ -e $run_folder ]] && own_node_is_healthy; then
        say "the cluster is already up"
        return
    fi
    local start
    start=$(now)
    if has_leftovers; then
        step "removed the previous cluster" remove_everything
    fi
    mkdir -p "$data_folder"
    require_disk_space "$data_folder" "$cluster_disk_gib"
    bring_up
    say "the cluster is up after $(seconds_since "$start") s"
}

# require_disk_space FOLDER GIB: ends the command if the file system of the folder has less space available. Without
# this check, the unpacking of an image, etcd or a test would fail.
require_disk_space() {
    local available
    available=$(df --output=avail --block-size=1M "$1" | tail -n 1)
    ((available >= $2 * 1024)) ||
        die "the cluster needs $2 GiB of free disk space in $1, but only $available MiB are available: free disk space, for example in $cache_folder"
}

own_node_processes=(etcd containerd kube-apiserver kube-controller-manager kube-scheduler kube-proxy coredns kubelet)

own_node_is_healthy() {
    local process
    [[ $(cat "$run_folder/made-from" 2>/dev/null) == "$(own_node_made_from)" ]] || {
        say "the running cluster is incomplete or has other programs or manifests: recreating it"
        return 1
    }
    for process in "${own_node_processes[@]}"; do
        is_running "$process" || {
            say "$process is not running: recreating the cluster"
            return 1
        }
    done
    own_kubectl wait --for=condition=Ready --timeout=2s "node/$node_name" >/dev/null &&
        deployments_available flux-system >/dev/null && deployments_available "$services_namespace" >/dev/null
}

# Prints all inputs of a cluster. If the running cluster was created from different inputs, the cluster is outdated.
own_node_made_from() {
    find_images
    find_flux_manifests
    local part image
    for part in "${parts[@]}"; do printf '%s\n' "${part_binaries[$part]}"; done
    for image in "${images[@]}"; do printf '%s\n' "${image_archives[$image]}"; done
    printf '%s\n' "$flux_manifests"
    cat "$cluster_folder"/manifests/services/* "$cluster_folder"/lib/{settings,network,credentials,control-plane,node,node-view}.sh | sha256sum
}

has_leftovers() {
    [[ -e $run_folder || -e $data_folder || -e /run/netns/$cluster_name ]] || [[ -n $(our_cgroups) ]]
}

# Starts independent steps in parallel. For example, containerd imports the images while etcd and the API server start.
bring_up() {
    mkdir -p "$run_folder" "$data_folder"
    chmod 711 "$run_folder" "$data_folder"
    create_cgroups
    create_network
    step "created the network and the credentials" create_credentials
    local containers control_plane
    step "containerd runs, images imported" start_containerd_with_images &
    containers=$!
    step "API server is ready" start_etcd_and_api_server &
    control_plane=$!
    wait "$control_plane" || exit 1
    start_controllers
    start_dns
    start_proxy
    wait_for 30 "the socket of containerd" "show_log containerd" test -S "$containerd_socket"
    start_kubelet
    local applied
    step "applied Flux and the test services" apply_everything &
    applied=$!
    step "the node is ready" wait_for_node
    wait "$containers" || exit 1
    wait "$applied" || exit 1
    step "Flux is available" wait_for_deployments 60 flux-system
    step "test services are available" wait_for_deployments 60 "$services_namespace"
    record_service_addresses
    own_node_made_from >"$run_folder/made-from"
}

start_containerd_with_images() {
    start_containerd
    local image
    for image in "${images[@]}"; do
        import_image "$(image_name "$image")" "${image_archives[$image]}"
    done
}

start_etcd_and_api_server() {
    start_etcd
    start_api_server
}

apply_everything() {
    quietly own_kubectl apply --filename "$flux_manifests/namespace.yaml"
    quietly apply_flux
    quietly apply_services
}

wait_for_node() {
    wait_for 60 "the node to be ready" "show_log kubelet" own_kubectl wait --for=condition=Ready --timeout=1s "node/$node_name"
}

own_node_down() {
    if ! has_leftovers; then
        say "there is no cluster"
        return
    fi
    require_root
    step "removed the cluster" remove_everything
}

remove_everything() {
    end_processes
    remove_network
    remove_mounts
    rm -rf --one-file-system "$data_folder" "$run_folder"
    remove_cgroups
}

# The node's mounts are in a separate mount namespace, which disappears with the node's processes. If a mount remains in
# the script's mount namespace, the script must unmount the directory first. Otherwise, deleting the directory would
# delete the mounted files.
remove_mounts() {
    local folder
    while read -r folder; do
        umount "$folder" || umount --lazy "$folder" || die "failed to unmount $folder: find the processes that use it with 'fuser -vm $folder'"
    done < <(our_mounts | sort -r)
}

our_mounts() {
    awk -v run="$run_folder" -v data="$data_folder" 'index($5 "/", run "/") == 1 || index($5 "/", data "/") == 1 { print $5 }' /proc/self/mountinfo
}

our_cgroups() {
    local hierarchy
    for hierarchy in $(cgroup_hierarchies); do
        [[ ! -d $hierarchy/$cluster_name ]] || printf '%s\n' "$hierarchy/$cluster_name"
    done
}

own_node_status() {
    if ! has_leftovers; then
        say "there is no cluster: start one with 'up'"
        return 1
    fi
    local process
    for process in "${own_node_processes[@]}"; do
        if is_running "$process"; then
            printf 'running  %-25s pid %s\n' "$process" "$(process_id "$process")"
        else
            printf 'ended    %s\n' "$process"
        fi
    done
    own_kubectl get nodes,pods --all-namespaces --output wide
}

own_node_load_image() {
    (($# == 2)) || die "usage: cluster load-image NAME ARCHIVE"
    [[ -f $2 ]] || die "the archive $2 does not exist"
    is_running containerd || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    step "loaded $1" import_image "$1" "$2"
}

own_node_kubectl() {
    require_running_node
    exec_in_network "$(tool kubernetes kubectl)" --kubeconfig "$run_folder/kubeconfig" "$@"
}

require_running_node() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
}

exec_in_network() {
    exec nsenter --net="/run/netns/$cluster_name" "$@"
}
