# Flux Operator controllers for ResourceSets. The script builds the controllers on demand. These controllers do not
# manage the installed Flux.
# shellcheck shell=bash

flux_operator_module=github.com/controlplaneio-fluxcd/flux-operator
# CustomResourceDefinition for a kind that only the ResourceSet test uses.
operator_definition=resourcesets.fluxcd.controlplane.io
# CustomResourceDefinition for a kind that only an example uses.
example_definition=fluxinstances.fluxcd.controlplane.io

flux_operator_version() {
    required_version flux-operator "$flux_operator_module"
}

# Installs the Flux Operator, unless an existing cluster already contains the operator.
install_flux_operator() {
    if cluster_kubectl get customresourcedefinition "$operator_definition" >/dev/null 2>&1 &&
        ! is_ours customresourcedefinition "$operator_definition"; then
        say "the Flux Operator is already installed"
        return
    fi
    build_missing_part flux-operator "tool for ResourceSets"
    find_archives flux-operator
    build_missing_images flux-operator
    for_this_cluster load_image "$(image_name flux-operator)" "${image_archives[flux-operator]}"
    quietly with_flux_operator_manifests apply --server-side --force-conflicts
    wait_for_deployments 60 flux-system
}

# Deletes the CustomResourceDefinitions first, while the operator can still remove the finalizers of their objects.
remove_flux_operator() {
    cluster_kubectl delete customresourcedefinitions --selector "$installed_label,app.kubernetes.io/name=flux-operator" --timeout=120s
    with_flux_operator_manifests delete --ignore-not-found --timeout=120s
}

# with_flux_operator_manifests ARGUMENT...: runs kubectl with the operator's manifests.
with_flux_operator_manifests() {
    local folder scratch
    folder=$(module_folder "$flux_operator_module" "$(flux_operator_version)")/config
    mkdir -p "$cache_folder/flux"
    scratch=$(mktemp -d "$cache_folder/flux/.operator.XXXXXX")
    cp --recursive --no-preserve=mode "$cluster_folder/manifests/flux-operator/kustomization.yaml" "$folder/crd" "$folder/manager" \
        "$folder/default/rbac.yaml" "$scratch/"
    "$(tool kubernetes kubectl)" kustomize "$scratch" >"$scratch/rendered.yaml"
    cluster_kubectl "$@" --filename "$scratch/rendered.yaml"
    rm -rf "$scratch"
}

# Installs the CustomResourceDefinition FluxInstance, unless an existing cluster already contains this definition. With
# this definition, the tests can validate the example without the operator.
apply_example_definition() {
    ! cluster_kubectl get customresourcedefinition "$example_definition" >/dev/null 2>&1 || return 0
    local folder
    folder=$(module_folder "$flux_operator_module" "$(flux_operator_version)")
    cluster_kubectl apply --server-side --filename "$folder/config/crd/bases/fluxcd.controlplane.io_fluxinstances.yaml"
    cluster_kubectl label customresourcedefinition "$example_definition" "$installed_label"
    cluster_kubectl wait --for=condition=Established --timeout=30s customresourcedefinition "$example_definition"
}
