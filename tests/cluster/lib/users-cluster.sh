# Existing cluster, which TEST_KUBECONFIG selects. `up` installs the services and, if missing, Flux. `down` removes only
# the objects that `up` has installed.
# shellcheck shell=bash

users_cluster_kubectl() {
    "$(tool kubernetes kubectl)" --kubeconfig "$TEST_KUBECONFIG" "$@"
}

users_cluster_up() {
    require_test_kubeconfig
    install_packages
    build_images
    render_flux
    say "using the cluster of $TEST_KUBECONFIG: $(describe_users_cluster)"
    users_cluster_kubectl --request-timeout 10s get --raw /version >/dev/null || die "failed to connect to the cluster of $TEST_KUBECONFIG (see above)"
    if flux_is_installed; then
        say "Flux is already installed"
    else
        local controller
        for controller in "${flux_controllers[@]}"; do load_image_by_hook "$controller"; done
        step "installed Flux" install_flux
    fi
    load_image_by_hook services
    load_image_by_hook pulumi
    step "applied the test services" quietly apply_services
    step "test services are available" wait_for_deployments 120 "$services_namespace"
}

require_test_kubeconfig() {
    [[ -f $TEST_KUBECONFIG ]] || die "the file of TEST_KUBECONFIG does not exist: $TEST_KUBECONFIG"
    TEST_KUBECONFIG=$(realpath "$TEST_KUBECONFIG")
}

describe_users_cluster() {
    users_cluster_kubectl config view --minify --output 'jsonpath=context {.contexts[0].name}, server {.clusters[0].cluster.server}' ||
        die "TEST_KUBECONFIG ($TEST_KUBECONFIG) has no usable current context"
}

flux_is_installed() {
    [[ -n $(users_cluster_kubectl get customresourcedefinitions gitrepositories.source.toolkit.fluxcd.io --ignore-not-found --output name) ]]
}

# Adds a label to the created objects, because `down` must keep a namespace that existed before `up`.
install_flux() {
    if [[ -z $(users_cluster_kubectl get namespace flux-system --ignore-not-found --output name) ]]; then
        quietly users_cluster_kubectl apply --filename "$flux_manifests/namespace.yaml"
        quietly users_cluster_kubectl label namespace flux-system "$installed_label"
    fi
    quietly apply_flux
    quietly users_cluster_kubectl label --filename "$flux_manifests/crds.yaml" "$installed_label"
    wait_for_deployments 120 flux-system
}

load_image_by_hook() {
    hand_over_image "$(image_name "$1")" "${image_archives[$1]}"
}

# hand_over_image NAME ARCHIVE: loads an image into the cluster with the command in TEST_IMAGE_HOOK.
hand_over_image() {
    if [[ -z ${TEST_IMAGE_HOOK:-} ]]; then
        say "TEST_IMAGE_HOOK is not set: load the archive $2 into the cluster as the image $1"
        return
    fi
    # shellcheck disable=SC2086 # a command with arguments
    step "loaded $1" quietly $TEST_IMAGE_HOOK "$2" "$1"
}

users_cluster_load_image() {
    (($# == 2)) || die "usage: cluster load-image NAME ARCHIVE"
    [[ -f $2 ]] || die "the archive $2 does not exist"
    hand_over_image "$1" "$2"
}

users_cluster_down() {
    require_test_kubeconfig
    find_flux_manifests
    say "removing the test services from the cluster of $TEST_KUBECONFIG: $(describe_users_cluster)"
    if is_ours namespace "$services_namespace"; then
        step "removed the test services" quietly users_cluster_kubectl delete namespace "$services_namespace" --timeout=120s
    fi
    if is_ours customresourcedefinition "$operator_definition"; then
        step "removed the Flux Operator" quietly remove_flux_operator
    fi
    if is_ours customresourcedefinition "$argo_cd_definition"; then
        step "removed Argo CD" quietly remove_argo_cd
    fi
    if is_ours customresourcedefinition "$example_definition"; then
        quietly users_cluster_kubectl delete customresourcedefinition "$example_definition" --timeout=120s
    fi
    if is_ours customresourcedefinition gitrepositories.source.toolkit.fluxcd.io; then
        step "removed Flux" remove_flux
    fi
}

# Deletes the CustomResourceDefinitions first, while the controllers can still remove the finalizers of their objects.
remove_flux() {
    [[ -d $flux_manifests ]] || die "the manifests of Flux are not in $cache_folder: run 'up' again, then 'down'"
    quietly users_cluster_kubectl delete --filename "$flux_manifests/crds.yaml" --ignore-not-found --timeout=120s
    quietly users_cluster_kubectl delete --filename "$flux_manifests/controllers.yaml" --ignore-not-found --timeout=120s
    if is_ours namespace flux-system; then
        quietly users_cluster_kubectl delete namespace flux-system --timeout=120s
    fi
}

# is_ours KIND NAME: succeeds if the object exists and `up` has created the object.
is_ours() {
    [[ -n $(cluster_kubectl get "$1" --selector "$installed_label" --field-selector "metadata.name=$2" --output name) ]]
}

users_cluster_status() {
    require_test_kubeconfig
    say "$(describe_users_cluster)"
    users_cluster_kubectl get nodes,pods --all-namespaces --output wide
}

# Prints the environment variables for tests, except those that contain forwarded addresses. The addresses exist only
# during `exec`.
users_cluster_environment() {
    require_test_kubeconfig
    printf '%s\n' "TEST_NODE=none" "KUBECONFIG=$TEST_KUBECONFIG"
    print_common_environment
}

users_cluster_run() {
    (($# > 0)) || die "usage: cluster exec COMMAND..."
    local settings git provider_log source_faults pulumi_cloud s3 registry backends result=0
    settings=$(users_cluster_environment)
    local -a environment
    mapfile -t environment <<<"$settings"
    is_ours namespace "$services_namespace" || die "the test services are not installed in the cluster of $TEST_KUBECONFIG: run '$cluster_folder/cluster up' first"
    forwards_folder=$(mktemp -d)
    : >"$forwards_folder/pids"
    trap end_forwards EXIT
    git=$(forward git 80)
    provider_log=$(forward provider-log 80)
    source_faults=$(forward source-faults 80)
    pulumi_cloud=$(forward api 80)
    s3=$(forward s3 7070)
    registry=$(forward registry 5000)
    backends=$(forward_backends)
    [[ -z $backends ]] || mapfile -t -O "${#environment[@]}" environment <<<"$backends"
    env "${environment[@]}" "GIT_URL=http://$git" "PROVIDER_LOG_URL=http://$provider_log" "SOURCE_FAULTS_URL=http://$source_faults" \
        "PULUMI_CLOUD_URL=http://$pulumi_cloud" "S3_URL=http://$s3" "REGISTRY_URL=http://$registry" "PATH=$(path_with_tools)" "$@" || result=$?
    exit "$result"
}

# forward SERVICE PORT: forwards a local address to the Service, and prints the local address.
forward() {
    local log=$forwards_folder/$1.log
    # Starts the program directly and not through a shell function, because the script must record the program's process
    # ID.
    "$(tool kubernetes kubectl)" --kubeconfig "$TEST_KUBECONFIG" --namespace "$services_namespace" \
        port-forward "service/$1" ":$2" </dev/null >"$log" 2>&1 &
    printf '%s\n' "$!" >>"$forwards_folder/pids"
    wait_for 30 "a port-forward to the service $1" "cat $log" grep -q '^Forwarding from 127.0.0.1:' "$log"
    sed -n 's/^Forwarding from \(127\.0\.0\.1:[0-9]*\) .*/\1/p' "$log"
}

end_forwards() {
    local pid
    while read -r pid; do
        kill "$pid" 2>/dev/null || true
    done <"$forwards_folder/pids"
    rm -rf "$forwards_folder"
}
