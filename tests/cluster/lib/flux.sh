# Flux's controllers, installed from the manifests in their Go modules.
# shellcheck shell=bash

# This component is part of the project and under test.
notifications_component=$cluster_folder/../../kustomize/components/notifications
flux_controllers=(source-controller kustomize-controller notification-controller)

# flux_controller_version CONTROLLER
flux_controller_version() {
    required_version "$1" "github.com/fluxcd/$1"
}

flux_manifests=""

# find_flux_manifests: sets the path of the directory with the rendered manifests, which may not exist yet:
# namespace.yaml, crds.yaml, controllers.yaml, and components.yaml with all of them.
find_flux_manifests() {
    [[ -z $flux_manifests ]] || return 0
    local hash controller
    hash=$({
        printf '%s\n' "$flux_checksum"
        for controller in "${flux_controllers[@]}"; do flux_controller_version "$controller"; done
        find "$cluster_folder/manifests/flux" "$notifications_component" -type f | LC_ALL=C sort | xargs cat "$cluster_folder/lib/flux.sh"
    } | sha256sum)
    flux_manifests=$cache_folder/flux/${hash:0:16}
}

render_flux() {
    find_flux_manifests
    [[ ! -d $flux_manifests ]] || return 0
    step "rendered Flux's manifests" render_flux_manifests
}

render_flux_manifests() {
    local controller module flux scratch
    flux=$(module_folder github.com/fluxcd/flux2/v2 "$flux_version" "$flux_checksum")/manifests
    mkdir -p "$cache_folder/flux"
    scratch=$(mktemp -d "$cache_folder/flux/.render.XXXXXX")
    local -a copy=(cp --recursive --no-preserve=mode)
    local definitions=$scratch/definitions components=$scratch/controllers
    "${copy[@]}" "$cluster_folder"/manifests/flux/{definitions,extended,controllers} "$scratch/"
    "${copy[@]}" "$flux/install/labels.yaml" "$definitions/"
    "${copy[@]}" "$notifications_component" "$scratch/extended/"
    "${copy[@]}" "$flux/install/labels.yaml" "$flux/rbac" "$flux/policies" "$components/"
    for controller in "${flux_controllers[@]}"; do
        module=$(module_folder "github.com/fluxcd/$controller" "$(flux_controller_version "$controller")")
        "${copy[@]}" "$module/config/crd" "$definitions/$controller"
        mkdir "$components/$controller"
        "${copy[@]}" "$module/config/manager" "$flux/bases/$controller"/{account,labels,patch}.yaml "$components/$controller/"
        sed "s/CONTROLLER/$controller/" "$cluster_folder/manifests/flux/each-controller.yaml" >"$components/$controller/kustomization.yaml"
    done
    mkdir "$scratch/rendered"
    "${copy[@]}" "$flux/install/namespace.yaml" "$scratch/rendered/"
    "$(tool kubernetes kubectl)" kustomize "$scratch/extended" >"$scratch/rendered/crds.yaml"
    "$(tool kubernetes kubectl)" kustomize "$components" >"$scratch/rendered/controllers.yaml"
    # A single file, as `flux bootstrap` writes it.
    {
        cat "$scratch/rendered/namespace.yaml"
        printf -- '---\n'
        "$(tool kubernetes kubectl)" kustomize "$definitions"
        printf -- '---\n'
        cat "$scratch/rendered/controllers.yaml"
    } >"$scratch/rendered/components.yaml"
    mv "$scratch/rendered" "$flux_manifests"
    rm -rf "$scratch"
}

# module_folder MODULE VERSION [CHECKSUM]: prints the directory of the module. Downloads the module if it is missing.
module_folder() {
    require_go
    local answer folder checksum
    answer=$(cd / && GOWORK=off GOFLAGS='' go mod download -json "$1@$2") || die "failed to download the module $1@$2: $answer"
    folder=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
    checksum=$(sed -n 's/^\t"Sum": "\(.*\)",*$/\1/p' <<<"$answer")
    [[ -z ${3:-} || $checksum == "$3" ]] || die "the module $1@$2 has the checksum $checksum instead of $3"
    printf '%s' "$folder"
}

# Applies the CustomResourceDefinitions first, because the API server serves a new kind with a delay. The caller creates
# the namespace.
apply_flux() {
    local -a apply=(cluster_kubectl apply --server-side --force-conflicts)
    "${apply[@]}" --filename "$flux_manifests/crds.yaml"
    cluster_kubectl wait --for=condition=Established --timeout=30s customresourcedefinitions --selector app.kubernetes.io/part-of=flux
    "${apply[@]}" --filename "$flux_manifests/controllers.yaml"
}

example_definitions=(helmreleases.helm.toolkit.fluxcd.io fluxinstances.fluxcd.controlplane.io)

# Installs the CustomResourceDefinitions of kinds that only the examples use, to validate these examples. The controllers
# of these kinds are not part of the cluster. Keeps the definitions of an existing cluster.
apply_example_definitions() {
    apply_definition "${example_definitions[0]}" \
        "$(module_folder github.com/fluxcd/helm-controller "$helm_controller_version" "$helm_controller_checksum")"
    apply_definition "${example_definitions[1]}" \
        "$(module_folder github.com/controlplaneio-fluxcd/flux-operator "$flux_operator_version" "$flux_operator_checksum")"
}

# apply_definition PLURAL.GROUP MODULE-DIRECTORY
apply_definition() {
    local name=$1 group=${1#*.}
    ! cluster_kubectl get customresourcedefinition "$name" >/dev/null 2>&1 || return 0
    cluster_kubectl apply --server-side --filename "$2/config/crd/bases/${group}_${name%%.*}.yaml"
    cluster_kubectl label customresourcedefinition "$name" "$installed_label"
    cluster_kubectl wait --for=condition=Established --timeout=30s customresourcedefinition "$name"
}
