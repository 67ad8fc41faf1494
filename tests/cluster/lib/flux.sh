# Installs Flux from the manifests in the Go modules of the Flux controllers.
# shellcheck shell=bash

# kustomize component from this project, which the tests cover.
notifications_component=$cluster_folder/../../kustomize/components/notifications
flux_controllers=(source-controller kustomize-controller notification-controller)
# Controller that runs only on demand. The cluster always contains the controller's CustomResourceDefinition.
flux_extra_controller=helm-controller

# flux_controller_part CONTROLLER: prints the part of lib/tools.sh that contains the controller.
flux_controller_part() {
    if [[ $1 == "$flux_extra_controller" ]]; then
        printf '%s' "$1"
    elif [[ $1 == source-controller && $cluster_versions == oldest ]]; then
        printf 'flux-oldest'
    else
        printf 'common'
    fi
}

# flux_controller_version CONTROLLER
flux_controller_version() {
    required_version "$(flux_controller_part "$1")" "github.com/fluxcd/$1"
}

flux_manifests=""

# find_flux_manifests: sets the path of the rendered manifests directory, even if the directory does not exist yet. The
# directory contains namespace.yaml, crds.yaml, controllers.yaml, components.yaml with the content of these three files,
# and helm-controller.yaml.
find_flux_manifests() {
    [[ -z $flux_manifests ]] || return 0
    local hash controller
    hash=$({
        printf '%s\n' "$flux_checksum"
        for controller in "${flux_controllers[@]}" "$flux_extra_controller"; do flux_controller_version "$controller"; done
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
    for controller in "${flux_controllers[@]}" "$flux_extra_controller"; do
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
    "$(tool kubernetes kubectl)" kustomize "$components/$flux_extra_controller" >"$scratch/rendered/$flux_extra_controller.yaml"
    # Like `flux bootstrap`, writes all components to a single file.
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

# module_folder MODULE VERSION [CHECKSUM]: prints the module directory. Downloads the module if the directory is
# missing.
module_folder() {
    require_go
    local answer folder checksum
    answer=$(cd / && GOWORK=off GOTOOLCHAIN=auto GOFLAGS='' go mod download -json "$1@$2") || die "failed to download the module $1@$2: $answer"
    folder=$(sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p' <<<"$answer")
    checksum=$(sed -n 's/^\t"Sum": "\(.*\)",*$/\1/p' <<<"$answer")
    [[ -z ${3:-} || $checksum == "$3" ]] || die "the module $1@$2 has the checksum $checksum instead of $3"
    printf '%s' "$folder"
}

# Applies the CustomResourceDefinitions first, because the API server serves a new kind only after a delay. The caller
# must create the namespace.
apply_flux() {
    local -a apply=(cluster_kubectl apply --server-side --force-conflicts)
    "${apply[@]}" --filename "$flux_manifests/crds.yaml"
    cluster_kubectl wait --for=condition=Established --timeout=30s customresourcedefinitions --selector app.kubernetes.io/part-of=flux
    "${apply[@]}" --filename "$flux_manifests/controllers.yaml"
}
