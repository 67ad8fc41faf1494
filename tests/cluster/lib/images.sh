# Container images, built FROM scratch and stored as docker-archives in the cache. The builds need no registry.
# shellcheck shell=bash

images=(pause "${flux_controllers[@]}" services pulumi)

image_name() {
    case $1 in
        pause) printf '%s' "$pause_image" ;;
        services) printf '%s' "$services_image" ;;
        languages | packages | backends) printf '%s/%s:test' "$image_prefix" "$1" ;;
        pulumi) printf '%s' "$pulumi_image" ;;
        pulumi-*) printf '%s/%s:test' "$image_prefix" "$1" ;;
        # Image names in the upstream manifests.
        flux-operator) printf 'ghcr.io/controlplaneio-fluxcd/%s:%s' "$1" "$(flux_operator_version)" ;;
        argo-cd) printf 'quay.io/argoproj/argocd:%s' "$(argo_cd_version)" ;;
        *-controller) printf 'fluxcd/%s:%s' "$1" "$(flux_controller_version "$1")" ;;
    esac
}

# The images of the Flux controllers and the Flux Operator differ only in the program. The Pulumi CLI images differ only
# in the CLI version. The image pulumi-kubernetes also contains the Kubernetes provider.
image_folder() {
    case $1 in
        flux-operator | *-controller) printf 'flux-controller' ;;
        pulumi-*) printf 'pulumi' ;;
        *) printf '%s' "$1" ;;
    esac
}

# flux_program IMAGE: prints the program's path in the image.
flux_program() {
    if [[ $1 == flux-operator ]]; then
        tool flux-operator resourcesets
    else
        tool "$(flux_controller_part "$1")" "$1"
    fi
}

# pulumi_part IMAGE: prints the part of lib/tools.sh that contains the image's Pulumi CLI.
pulumi_part() {
    case $1 in
        pulumi | pulumi-kubernetes) printf 'common' ;;
        *) printf '%s' "$1" ;;
    esac
}

# Prints the inputs of an image: the paths of cached programs, which contain a hash, and the content of all other files.
image_inputs() {
    local image=$1
    image_name "$image"
    [[ $image != pulumi-kubernetes ]] || tool pulumi-resource-kubernetes pulumi-resource-kubernetes
    case $image in
        pause) printf '%s\n' "$(tool services pause)" ;;
        flux-operator | *-controller) printf '%s\n' "$(flux_program "$image")" ;;
        pulumi | pulumi-*) printf '%s\n' "$(tool "$(pulumi_part "$image")" pulumi)" "$(tool "$(pulumi_part "$image")" pulumi-language-yaml)" "$(tool services pulumi-resource-testing)" ;;
        argo-cd) printf '%s\n' "$(tool argo-cd argo-cd)" ;;
        services) printf '%s\n' "$(tool services git-server)" "$(tool common versitygw)" "$(tool common registry)" ;;
        languages | packages | backends) "${image}_inputs" ;;
    esac
    local -a files=("$cluster_folder/images/$(image_folder "$image")/Dockerfile" "$cluster_folder/lib/images.sh")
    case $image in
        pulumi-kubernetes) files+=(/bin/busybox "$cluster_folder/lib/kubernetes-provider.sh") ;;
        pulumi | pulumi-*) files+=(/bin/busybox) ;;
        services)
            files+=(/bin/busybox)
            mapfile -t -O "${#files[@]}" files < <(git_files git-http-backend)
            ;;
        argo-cd)
            files+=(/bin/busybox)
            mapfile -t -O "${#files[@]}" files < <(git_files git-remote-http)
            ;;
        languages | packages) files+=("$cluster_folder/lib/languages.sh") ;;
        backends) files+=(/bin/busybox "$cluster_folder/lib/backends.sh") ;;
    esac
    cat "${files[@]}" | sha256sum
}

declare -A image_archives=()

find_images() {
    find_archives "${images[@]}"
}

# find_archives IMAGE...: computes the archive paths once. The archives do not need to exist.
find_archives() {
    find_tools
    local image hash
    for image in "$@"; do
        [[ -z ${image_archives[$image]:-} ]] || continue
        hash=$(image_inputs "$image" | sha256sum)
        image_archives[$image]=$cache_folder/images/$image-${hash:0:16}.tar
    done
}

build_images() {
    install_packages
    build_tools
    find_images
    build_missing_images "${images[@]}"
}

# build_missing_images IMAGE...
build_missing_images() {
    local image
    for image in "$@"; do
        if [[ -f ${image_archives[$image]} ]]; then
            touch "${image_archives[$image]}"
        else
            step "built image $(image_name "$image")" build_image "$image"
            find "$cache_folder/images" -mindepth 1 -maxdepth 1 \( -name "$image-????????????????.tar" -mtime +14 -o -name ".$image.??????" \) -exec rm -rf {} +
        fi
    done
}

build_image() {
    local image=$1 name scratch log
    name=$(image_name "$image")
    mkdir -p "$cache_folder/images"
    scratch=$(mktemp -d "$cache_folder/images/.$image.XXXXXX")
    log=$scratch/log
    mkdir -p "$scratch/context/root"
    cp "$cluster_folder/images/$(image_folder "$image")/Dockerfile" "$scratch/context/"
    "fill_$(image_folder "$image" | tr - _)_image" "$scratch/context/root" "$image"
    local -a buildah=(buildah --root "$scratch/storage" --runroot "$scratch/runroot" --storage-driver vfs)
    local policy=$cluster_folder/images/policy.json
    if ! {
        "${buildah[@]}" bud --isolation chroot --signature-policy "$policy" --tag "$name" "$scratch/context" &&
            "${buildah[@]}" push --signature-policy "$policy" "$name" "docker-archive:$scratch/image.tar:$name"
    } >"$log" 2>&1 9>&-; then
        tail -n 20 "$log" >&2
        rm -rf "$scratch"
        die "failed to build the image $name (see above)"
    fi
    mv "$scratch/image.tar" "${image_archives[$image]}"
    rm -rf "$scratch"
}

fill_pause_image() {
    cp "$(tool services pause)" "$1/pause"
}

fill_flux_controller_image() {
    cp "$(flux_program "$2")" "$1/controller"
    add_folder_for_all "$1/tmp"
}

fill_pulumi_image() {
    # This directory is outside the root, because `COPY --chown` changes only the owner of files that it creates.
    mkdir -p "$1/../home/pulumi"
    add_shell_and_users "$1"
    cp "$(tool "$(pulumi_part "$2")" pulumi)" "$(tool "$(pulumi_part "$2")" pulumi-language-yaml)" "$(tool services pulumi-resource-testing)" "$1/usr/local/bin/"
    [[ $2 != pulumi-kubernetes ]] || add_kubernetes_provider "$1"
}

fill_services_image() {
    add_shell_and_users "$1"
    cp "$(tool services git-server)" "$(tool services provider-log)" "$(tool services source-faults)" "$(tool services pulumi-cloud)" \
        "$(tool common versitygw)" "$(tool common registry)" "$1/usr/local/bin/"
    add_git "$1" git-http-backend
}

# The name of the executable file selects the program.
fill_argo_cd_image() {
    local program
    add_shell_and_users "$1"
    cp "$(tool argo-cd argo-cd)" "$1/usr/local/bin/"
    for program in argocd-application-controller argocd-repo-server argocd-redis kustomize; do
        ln -s argo-cd "$1/usr/local/bin/$program"
    done
    # Mount points, because the root file system of the containers is read-only.
    mkdir -p "$1/home/argocd" "$1/app/config"
    add_git "$1" git-remote-http
}

# add_git ROOT PROGRAM: adds Git and Git's HTTP program to an image root.
add_git() {
    local file programs
    while read -r file; do
        # Keeps the path that the loader expects. cp follows symbolic links.
        mkdir -p "$1$(dirname "$file")"
        cp --dereference "$file" "$1$file"
    done < <(git_files "$2")
    programs=$(git --exec-path)
    ln -s "$(type -P git)" "$1$programs/git"
}

# git_files PROGRAM: prints the files of Git and of Git's HTTP program, which is git-http-backend in a server and
# git-remote-http in a client. All other commands are built into `git`.
git_files() {
    local program
    program=$(git --exec-path)/$1
    printf '%s\n' "$(type -P git)" "$program"
    ldd "$(type -P git)" "$program" | grep -o '/[^ ]*\.so[^ ]*' | sort -u
}

# Adds a shell with its applets, users and groups. The images use only the IDs. The names exist for programs that look
# up the current user or group.
add_shell_and_users() {
    local root=$1 applet
    mkdir -p "$root/bin" "$root/usr/local/bin" "$root/etc"
    cp /bin/busybox "$root/bin/busybox"
    for applet in $(/bin/busybox --list); do
        [[ $applet == busybox ]] || ln -s busybox "$root/bin/$applet"
    done
    printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' 'pulumi:x:1000:1000:pulumi:/home/pulumi:/bin/sh' 'nobody:x:65534:65534:nobody:/tmp:/bin/sh' >"$root/etc/passwd"
    printf '%s\n' 'root:x:0:' 'pulumi:x:1000:' 'nogroup:x:65534:' >"$root/etc/group"
    add_folder_for_all "$root/tmp"
}

add_folder_for_all() {
    mkdir -p "$1"
    chmod 1777 "$1"
}
