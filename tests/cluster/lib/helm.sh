# Helm, and Flux's helm-controller for HelmReleases. The script builds both programs on demand.
# shellcheck shell=bash

build_helm() {
    build_missing_part helm "tool for the tests of the Helm chart"
}

install_helm_controller() {
    local controller=$flux_extra_controller
    build_missing_part "$controller" "tool for HelmReleases"
    find_archives "$controller"
    build_missing_images "$controller"
    for_this_cluster load_image "$(image_name "$controller")" "${image_archives[$controller]}"
    find_flux_manifests
    quietly for_this_cluster kubectl apply --namespace flux-system --server-side --force-conflicts --filename "$flux_manifests/$controller.yaml"
    wait_for_deployments 60 flux-system
}
