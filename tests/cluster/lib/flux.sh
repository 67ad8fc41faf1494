# Flux's source-controller, from the manifests that its own modules carry.
# shellcheck shell=bash

flux_manifests=""

# find_flux_manifests: where the rendered manifests are, or will be: namespace.yaml, crds.yaml, controller.yaml.
find_flux_manifests() {
    [[ -z $flux_manifests ]] || return 0
    local hash
    hash=$({
        printf '%s\n' "$flux_checksum" "$(required_version source-controller github.com/fluxcd/source-controller)"
        find "$cluster_folder/manifests/flux" -type f | LC_ALL=C sort | xargs cat "$cluster_folder/lib/flux.sh"
    } | sha256sum)
    flux_manifests=$cache_folder/flux/${hash:0:16}
}

render_flux() {
    find_flux_manifests
    [[ ! -d $flux_manifests ]] || return 0
    step "rendered Flux's manifests" render_flux_manifests
}

render_flux_manifests() {
    local controller flux scratch
    controller=$(module_folder github.com/fluxcd/source-controller "$(required_version source-controller github.com/fluxcd/source-controller)")
    flux=$(module_folder github.com/fluxcd/flux2/v2 "$flux_version" "$flux_checksum")/manifests
    mkdir -p "$cache_folder/flux"
    scratch=$(mktemp -d "$cache_folder/flux/.render.XXXXXX")
    local -a copy=(cp --recursive --no-preserve=mode)
    local definitions=$scratch/definitions components=$scratch/controller
    "${copy[@]}" "$cluster_folder"/manifests/flux/* "$scratch/"
    "${copy[@]}" "$controller/config/crd" "$flux/install/labels.yaml" "$definitions/"
    "${copy[@]}" "$flux/install/labels.yaml" "$flux/rbac" "$flux/policies" "$components/"
    "${copy[@]}" "$controller/config/manager" "$flux"/bases/source-controller/{account,labels}.yaml "$components/source-controller/"
    mkdir "$scratch/rendered"
    "${copy[@]}" "$flux/install/namespace.yaml" "$scratch/rendered/"
    "$(tool kubernetes kubectl)" kustomize "$definitions" >"$scratch/rendered/crds.yaml"
    "$(tool kubernetes kubectl)" kustomize "$components" >"$scratch/rendered/controller.yaml"
    mv "$scratch/rendered" "$flux_manifests"
    rm -rf "$scratch"
}

# module_folder MODULE VERSION [CHECKSUM]: downloads it when it is not there.
module_folder() {
    require_go
    local answer folder checksum
    answer=$(cd / && GOWORK=off GOFLAGS='' go mod download -json "$1@$2") || die "go cannot download the module $1@$2: $answer"
    folder=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
    checksum=$(sed -n 's/^\t"Sum": "\(.*\)",*$/\1/p' <<<"$answer")
    [[ -z ${3:-} || $checksum == "$3" ]] || die "the module $1@$2 has the checksum $checksum, and $3 was expected"
    printf '%s' "$folder"
}

# Definitions first: the API server serves a kind only a moment after it has its definition. The namespace is the caller's.
apply_flux() {
    local -a apply=(cluster_kubectl apply --server-side --force-conflicts)
    "${apply[@]}" --filename "$flux_manifests/crds.yaml"
    cluster_kubectl wait --for=condition=Established --timeout=30s --filename "$flux_manifests/crds.yaml"
    "${apply[@]}" --filename "$flux_manifests/controller.yaml"
}
