# Workspace pod images with other Pulumi CLI versions. The script builds the images on demand.
# shellcheck shell=bash

# Each version corresponds to the part pulumi-VERSION of lib/tools.sh.
cli_versions=(oldest middle newest)

# build_cli_versions VERSION...
build_cli_versions() {
    local version
    for version in "$@"; do
        [[ " ${cli_versions[*]} " == *" $version "* ]] || die "the version $version is not one of ${cli_versions[*]}"
    done
    install_packages
    build_tools
    local -a missing=()
    for version in "$@"; do
        build_missing_part "pulumi-$version" "Pulumi CLI $(cli_version "$version")"
        missing+=("pulumi-$version")
    done
    find_archives "${missing[@]}"
    build_missing_images "${missing[@]}"
}

# cli_version NAME: prints the CLI version, for example "v3.259.0".
cli_version() {
    required_version "pulumi-$1" github.com/pulumi/pulumi/pkg/v3
}

own_node_cli_versions() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    build_cli_versions "$@"
    local version name
    for version in "$@"; do
        name=$(image_name "pulumi-$version")
        own_node_load_image "$name" "${image_archives[pulumi-$version]}"
    done
}

users_cluster_cli_versions() {
    build_cli_versions "$@"
    local version
    for version in "$@"; do load_image_by_hook "pulumi-$version"; done
}

# Prints the name, the version and the image of each CLI version.
print_cli_versions() {
    local version
    for version in "$@"; do
        printf '%s %s %s\n' "$version" "$(cli_version "$version")" "$(image_name "pulumi-$version")"
    done
}
