# Argo CD for the tests with Applications. The script builds Argo CD on demand.
# shellcheck shell=bash

argo_cd_module=github.com/argoproj/argo-cd/v3
argo_cd_namespace=argocd
argo_cd_definition=applications.argoproj.io

argo_cd_version() {
    required_version argo-cd "$argo_cd_module"
}

# Installs Argo CD, unless an existing cluster already contains Argo CD.
install_argo_cd() {
    if cluster_kubectl get customresourcedefinition "$argo_cd_definition" >/dev/null 2>&1 &&
        ! is_ours customresourcedefinition "$argo_cd_definition"; then
        say "Argo CD is already installed"
        return
    fi
    build_missing_part argo-cd "tool for Applications"
    find_archives argo-cd
    build_missing_images argo-cd
    for_this_cluster load_image "$(image_name argo-cd)" "${image_archives[argo-cd]}"
    quietly with_argo_cd_manifests definitions apply --server-side --force-conflicts
    quietly cluster_kubectl wait --for=condition=Established --timeout=30s customresourcedefinitions --selector "$argo_cd_selector"
    quietly with_argo_cd_manifests installation apply --server-side --force-conflicts
    wait_for_deployments 120 "$argo_cd_namespace"
    wait_for 120 "the application controller of Argo CD" "show_namespace $argo_cd_namespace" \
        cluster_kubectl --namespace "$argo_cd_namespace" rollout status statefulset/argocd-application-controller --timeout=10s
}

# Label selector for the Argo CD CustomResourceDefinitions that `install_argo_cd` has applied.
argo_cd_selector=$installed_label,app.kubernetes.io/part-of=argocd

# Deletes the CustomResourceDefinitions first, while the application controller can still remove the finalizers of their
# objects.
remove_argo_cd() {
    cluster_kubectl delete customresourcedefinitions --selector "$argo_cd_selector" --timeout=120s
    # The kind AppProject no longer exists, so kubectl reports an error for the AppProject in the manifests.
    with_argo_cd_manifests installation delete --ignore-not-found --timeout=120s || true
}

# with_argo_cd_manifests PART ARGUMENT...: runs kubectl with the definitions or the installation.
with_argo_cd_manifests() {
    local part=$1 folder scratch
    shift
    folder=$(module_folder "$argo_cd_module" "$(argo_cd_version)")/manifests
    mkdir -p "$cache_folder/argo-cd"
    scratch=$(mktemp -d "$cache_folder/argo-cd/.manifests.XXXXXX")
    cp --recursive --no-preserve=mode "$cluster_folder/manifests/argo-cd/$part" "$scratch/"
    case $part in
        definitions) cp --recursive --no-preserve=mode "$folder/crds" "$scratch/$part/" ;;
        installation) cp --recursive --no-preserve=mode "$folder" "$scratch/$part/" ;;
    esac
    sed -i "s/VERSION/$(argo_cd_version)/" "$scratch/$part/kustomization.yaml"
    "$(tool kubernetes kubectl)" kustomize "$scratch/$part" >"$scratch/rendered.yaml"
    cluster_kubectl "$@" --filename "$scratch/rendered.yaml"
    rm -rf "$scratch"
}
