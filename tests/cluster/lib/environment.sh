# Environment variables for tests, and commands that run with these variables.
# shellcheck shell=bash

s3_backend_url="s3://$state_bucket?endpoint=http://s3.$services_namespace.svc.cluster.local:7070&s3ForcePathStyle=true&region=us-east-1&disableSSL=true"

# Prints the environment variables whose values do not depend on the kind of cluster.
print_common_environment() {
    find_flux_manifests
    printf '%s\n' \
        "GIT_URL_IN_CLUSTER=http://git.$services_namespace.svc.cluster.local" \
        "PROVIDER_LOG_URL_IN_CLUSTER=http://provider-log.$services_namespace.svc.cluster.local" \
        "SOURCE_FAULTS_URL_IN_CLUSTER=http://source-faults.$services_namespace.svc.cluster.local" \
        "PULUMI_CLOUD_URL_IN_CLUSTER=http://api.$services_namespace.svc.cluster.local" \
        "S3_BACKEND_URL=$s3_backend_url" \
        "S3_HOST_IN_CLUSTER=s3.$services_namespace.svc.cluster.local:7070" \
        "REGISTRY_HOST_IN_CLUSTER=registry.$services_namespace.svc.cluster.local:5000" \
        "S3_ACCESS_KEY=$s3_access_key" \
        "S3_SECRET_KEY=$s3_secret_key" \
        "PULUMI_IMAGE=$pulumi_image" \
        "FLUX_COMPONENTS=$flux_manifests/components.yaml"
}

# On a local node, the tests run in the node's network. Like a pod, the tests can connect to the cluster IPs of
# Services.
record_service_addresses() {
    local git provider_log source_faults pulumi_cloud s3 registry
    git=$(service_address git)
    provider_log=$(service_address provider-log)
    source_faults=$(service_address source-faults)
    pulumi_cloud=$(service_address api)
    s3=$(service_address s3)
    registry=$(service_address registry)
    printf '%s\n' "GIT_URL=http://$git" "PROVIDER_LOG_URL=http://$provider_log" "SOURCE_FAULTS_URL=http://$source_faults" \
        "PULUMI_CLOUD_URL=http://$pulumi_cloud" "S3_URL=http://$s3:7070" "REGISTRY_URL=http://$registry:5000" >"$run_folder/addresses"
}

service_address() {
    own_kubectl --namespace "$services_namespace" get service "$1" --output 'jsonpath={.spec.clusterIP}'
}

own_node_environment() {
    require_running_node
    [[ -f $run_folder/addresses ]] || die "the cluster is incomplete: run '$cluster_folder/cluster up' first"
    printf '%s\n' "TEST_NODE=own" "KUBECONFIG=$run_folder/kubeconfig" "CLUSTER_RUN_DIR=$run_folder" "FAKE_POD_ADDRESS=$node_address"
    cat "$run_folder/addresses"
    [[ ! -f $run_folder/backend-addresses ]] || cat "$run_folder/backend-addresses"
    [[ ! -f $run_folder/oidc-variables ]] || cat "$run_folder/oidc-variables"
    print_common_environment
}

own_node_run() {
    (($# > 0)) || die "usage: cluster exec COMMAND..."
    local settings
    settings=$(own_node_environment)
    local -a environment
    mapfile -t environment <<<"$settings"
    exec_in_network env "${environment[@]}" "PATH=$(path_with_tools)" "$@"
}

# Prints a PATH that starts with the directories of kubectl, pulumi, its language host, the test provider, the
# Kubernetes provider, helm, kubeconform, cosign, oras, promtool and otel-collector, in the cluster's versions. If a part
# is not built, its directory does not exist. The shell then searches for the program in the rest of the PATH, and can
# find another version.
path_with_tools() {
    local part
    for part in kubernetes common services pulumi-resource-kubernetes helm kubeconform cosign oras prometheus otel-collector; do
        printf '%s:' "${part_binaries[$part]}"
    done
    printf '%s' "$PATH"
}

print_path() {
    printf '%s\n' "$(path_with_tools)"
}
