# Test services in pods. A local node and an existing cluster use the same manifests.
# shellcheck shell=bash

services=(git s3 registry provider-log source-faults pulumi-cloud)

apply_services() {
    cluster_kubectl apply --server-side --force-conflicts --filename "$cluster_folder/manifests/services/namespace.yaml"
    apply_manifests services services "${services[@]}"
}

# apply_manifests DIRECTORY IMAGE SERVICE...: applies the manifests of services that use the image.
apply_manifests() {
    local folder=$1 image=$2 revision service
    shift 2
    find_archives "$image"
    revision=$(basename "${image_archives[$image]}" .tar)
    for service in "$@"; do
        sed "s/IMAGE-REVISION/$revision/" "$cluster_folder/manifests/$folder/$service.yaml"
        printf -- '---\n'
    done | cluster_kubectl apply --server-side --force-conflicts --filename -
}

# cluster_kubectl ARGUMENT...: runs kubectl for the selected cluster.
cluster_kubectl() {
    if [[ -n ${TEST_KUBECONFIG:-} ]]; then
        users_cluster_kubectl "$@"
    else
        own_kubectl "$@"
    fi
}

# wait_for_deployments SECONDS NAMESPACE
wait_for_deployments() {
    wait_for "$1" "the deployments in the namespace $2 to be available" "show_namespace $2" deployments_available "$2"
}

# The timeout applies to all Deployments together, and includes kubectl's requests.
deployments_available() {
    cluster_kubectl --namespace "$1" wait --for=condition=Available --timeout=10s deployment --all
}

show_namespace() {
    cluster_kubectl --namespace "$1" get deployments,pods --output wide
    cluster_kubectl --namespace "$1" get events --sort-by=.lastTimestamp | tail -n 15
}
