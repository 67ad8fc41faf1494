# Pulumi's Kubernetes provider: an image for workspace pods with the provider, and a server from which the CLI downloads
# the provider. The script builds the provider on demand.
# shellcheck shell=bash

kubernetes_provider_module=github.com/pulumi/pulumi-kubernetes/provider/v4
# Version of the SDKs in languages/packages. The Go module of the provider has no tags, and its commit precedes the
# release of this version by one day.
kubernetes_provider_version=4.25.0
kubernetes_provider_service=plugins

own_node_kubernetes_provider() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    build_kubernetes_provider_image
    own_node_load_image "$(image_name pulumi-kubernetes)" "${image_archives[pulumi-kubernetes]}"
    apply_plugin_server
}

users_cluster_kubernetes_provider() {
    build_kubernetes_provider_image
    load_image_by_hook pulumi-kubernetes
    apply_plugin_server
}

build_kubernetes_provider_image() {
    install_packages
    build_tools
    build_kubernetes_provider
    find_archives pulumi-kubernetes
    build_missing_images pulumi-kubernetes
}

build_kubernetes_provider() {
    build_missing_part pulumi-resource-kubernetes "Kubernetes provider"
}

apply_plugin_server() {
    quietly apply_manifests kubernetes-provider pulumi-kubernetes "$kubernetes_provider_service"
    wait_for_deployments 120 "$services_namespace"
}

# write_kubernetes_provider_overlay FILE: writes a build overlay that adds the schemas in the module to the directory of
# the program, because a program can embed only files in its own directory.
write_kubernetes_provider_overlay() {
    local target schemas
    target=$(part_folder pulumi-resource-kubernetes)
    schemas=$(module_folder "$kubernetes_provider_module" "$(required_version pulumi-resource-kubernetes "$kubernetes_provider_module")")/cmd/pulumi-resource-kubernetes
    printf '{"Replace": {"%s": "%s", "%s": "%s"}}\n' "$target/schema.json" "$schemas/schema.json" \
        "$target/terraform-mapping.json" "$schemas/terraform-mapping.json" >"$1"
}

# add_kubernetes_provider ROOT: adds the provider to the PATH of an image, and the archive that the plugin server serves.
add_kubernetes_provider() {
    local program
    program=$(tool pulumi-resource-kubernetes pulumi-resource-kubernetes)
    cp "$program" "$1/usr/local/bin/"
    mkdir -p "$1/plugins"
    tar -czf "$1/plugins/pulumi-resource-kubernetes-v$kubernetes_provider_version-linux-amd64.tar.gz" -C "$(dirname "$program")" pulumi-resource-kubernetes
}
