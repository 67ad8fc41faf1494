# Builds the cluster's programs from Go modules, and stores the binaries in the cache. Each part is a directory with a
# go.mod and a complete go.sum. All parts share Go's build cache and module cache. The part `common` contains most
# programs. All programs in one module use the same dependency versions, so Go compiles each dependency only once.
# shellcheck shell=bash

parts=(common kubernetes services)
[[ $cluster_versions != oldest ]] || parts+=(flux-oldest)
# Parts that the script builds on demand, because most tests do not need them.
extra_parts=(helm helm-controller flux-operator kwok pulumi-language-hosts pulumi-language-adapter cosign oras prometheus gcs-server
    otel-collector transit-server local-kms argo-cd kubeconform dex pulumi-resource-kubernetes flux-oldest pulumi-oldest pulumi-middle pulumi-newest)

# Duration of a cold build on two CPUs, in minutes. The script prints this duration.
declare -A part_minutes=(
    [common]=16 [kubernetes]=8 [services]=1 [helm]=3 [helm-controller]=3 [flux-operator]=4 [kwok]=2
    [pulumi-language-hosts]=2 [pulumi-language-adapter]=1 [cosign]=4 [oras]=1 [prometheus]=5 [gcs-server]=2 [otel-collector]=2 [transit-server]=2 [local-kms]=1 [argo-cd]=8 [kubeconform]=1 [dex]=3 [pulumi-resource-kubernetes]=7
    [flux-oldest]=6 [pulumi-oldest]=4 [pulumi-middle]=4 [pulumi-newest]=4
)

# Compiles without debug information, which the linker flags would remove. These flags do not affect the binaries, so
# they are not an input of a part. tests/run also tests the services with these flags.
go_flags="-mod=readonly -buildvcs=false -trimpath -gcflags=all=-dwarf=false"

part_folder() {
    if [[ $1 == services ]]; then
        printf '%s/services' "$cluster_folder"
    elif [[ $1 == kubernetes && $cluster_versions == oldest ]]; then
        printf '%s/tools/kubernetes-oldest' "$cluster_folder"
    else
        printf '%s/tools/%s' "$cluster_folder" "$1"
    fi
}

# Linker flags that the upstream builds use. The versions in the flags come from the go.mod files.
part_linker_flags() {
    local version flags="-s -w"
    case $1 in
        kubernetes)
            version=$(required_version kubernetes k8s.io/kubernetes)
            local package=k8s.io/component-base/version minor=${version#v1.}
            flags+=" -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
            # This version has dependencies that refer to internal symbols in the standard library. Newer linkers reject
            # these references.
            [[ $cluster_versions != oldest ]] || flags+=" -checklinkname=0"
            ;;
        common | pulumi-oldest | pulumi-middle | pulumi-newest)
            version=$(required_version "$1" github.com/pulumi/pulumi/pkg/v3)
            flags+=" -X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=$version"
            # This version has a dependency that refers to an internal variable in the standard library. Newer linkers
            # reject this reference.
            [[ $1 != pulumi-oldest ]] || flags+=" -checklinkname=0"
            ;;
        pulumi-resource-kubernetes) flags+=" -X $kubernetes_provider_module/pkg/version.Version=$kubernetes_provider_version" ;;
    esac
    printf '%s' "$flags"
}

# Build tags for a part, as Go flags.
part_tags() {
    # The tag excludes all cloud provider SDKs, which Prometheus uses only to discover targets.
    [[ $1 != prometheus ]] || printf ' -tags=remove_all_sd'
}

# required_version PART MODULE: prints the module version in the part's go.mod.
required_version() {
    awk -v module="$2" '$1 == "require" { $1 = ""; $0 = $0 } $1 == module && $2 ~ /^v/ { print $2; exit }' "$(part_folder "$1")/go.mod"
}

# Prints the inputs of a part.
part_inputs() {
    part_linker_flags "$1"
    part_tags "$1"
    cd "$(part_folder "$1")"
    local -a files=(go.mod go.sum)
    mapfile -t -O 2 files < <(find . -name '*.go' ! -name '*_test.go' | LC_ALL=C sort)
    sha256sum "${files[@]}"
}

declare -A part_binaries=()

# find_tools: computes the paths of all binaries once. The binaries need not exist.
find_tools() {
    ((${#part_binaries[@]} == 0)) || return 0
    [[ $cluster_versions == current || $cluster_versions == oldest ]] || die "TEST_VERSIONS is $cluster_versions: set it to oldest, or unset it"
    local part hash
    for part in "${parts[@]}" "${extra_parts[@]}"; do
        hash=$(part_inputs "$part" | sha256sum)
        part_binaries[$part]=$cache_folder/tools/$part-${hash:0:16}/bin
    done
}

# tool PART NAME: prints the path of a program.
tool() {
    find_tools
    printf '%s/%s' "${part_binaries[$1]}" "$2"
}

build_tools() {
    find_tools
    local part number=0 start
    start=$(now)
    for part in "${parts[@]}"; do
        number=$((number + 1))
        build_missing_part "$part" "tool $number of ${#parts[@]}"
    done
    (($(now) - start < 1000)) || say "tools are ready after $(seconds_since "$start") s, in $cache_folder/tools"
}

build_prometheus() {
    build_missing_part prometheus "tool for the tests of alerts"
}

build_kubeconform() {
    build_missing_part kubeconform "tool for the validation of manifests"
}

build_otel_collector() {
    build_missing_part otel-collector "tool for the tests of traces"
}

build_release_tools() {
    local part
    for part in kubernetes helm cosign oras; do build_missing_part "$part" "tool for releases"; done
}

# build_missing_part PART WHICH
build_missing_part() {
    local part=$1
    find_tools
    if [[ -d ${part_binaries[$part]} ]]; then
        touch "${part_binaries[$part]%/bin}"
        return
    fi
    require_go
    say "$2: $part, up to about ${part_minutes[$part]} min on two CPUs"
    step "built $part" build_part "$part"
    remove_old_builds "$part"
}

require_go() {
    type -P go >/dev/null || die "go is not on the PATH: install Go 1.26 or later, and run this command again"
}

# Builds in a temporary directory, and then renames the directory. An interrupted build therefore leaves no partial
# result. With GOTOOLCHAIN=auto, Go downloads a newer toolchain from the module proxy if the part's go.mod requires it.
# The default of a distribution or a GitHub workflow can be GOTOOLCHAIN=local, which fails instead.
build_part() {
    local part=$1 target=${part_binaries[$1]%/bin} scratch package=tool flags result=0
    flags=$go_flags$(part_tags "$part")
    case $part in
        services) package=./cmd/... ;;
        argo-cd | flux-operator | pulumi-language-adapter | gcs-server | transit-server | otel-collector | dex | pulumi-resource-kubernetes) package=. ;;
    esac
    mkdir -p "$cache_folder/tools"
    scratch=$(mktemp -d "$cache_folder/tools/.$part.XXXXXX")
    if [[ $part == pulumi-resource-kubernetes ]]; then
        write_kubernetes_provider_overlay "$scratch/overlay.json"
        flags+=" -overlay=$scratch/overlay.json"
    fi
    report_progress "$part" "$package" "$scratch/log" "$flags" &
    (
        cd "$(part_folder "$part")" &&
            GOWORK=off GOTOOLCHAIN=auto GOFLAGS=$flags GOBIN=$scratch/bin CGO_ENABLED=0 GOGC=${GOGC:-400} \
                go install -v -ldflags "$(part_linker_flags "$part")" "$package" 9>&-
    ) >"$scratch/log" 2>&1 || result=$?
    # `wait` suppresses bash's message about the terminated job.
    { kill "$!" && wait "$!"; } 2>/dev/null || true
    if ((result != 0)); then
        tail -n 20 "$scratch/log" >&2
        rm -rf "$scratch"
        die "failed to build $part in $(part_folder "$part") (see above). The build needs the module proxy: check 'go env GOPROXY'"
    fi
    # Renames the etcd binary, because its Go package is named "server".
    [[ $part != common ]] || mv "$scratch/bin/server" "$scratch/bin/etcd"
    rm -f "$scratch/log" "$scratch/overlay.json"
    chmod 755 "$scratch"
    rm -rf "$target"
    mv "$scratch" "$target"
}

# report_progress PART PACKAGE LOG FLAGS: prints the number of compiled packages once per minute until the log is removed
# or the script exits. The log contains one line for each package that is not in the build cache.
report_progress() {
    exec 9>&- >/dev/null
    local total
    sleep 60 2>/dev/null
    total=$(cd "$(part_folder "$1")" && GOWORK=off GOTOOLCHAIN=auto GOFLAGS=$4 go list -deps "$2" | wc -l)
    while kill -0 "$$" 2>/dev/null && [[ -f $3 ]]; do
        say "$1: compiled $(wc -l <"$3") packages of at most $total"
        sleep 60 2>/dev/null
    done
}

# Removes builds that no script has used for two weeks, and files that interrupted builds have left.
remove_old_builds() {
    local part=$1
    find "$cache_folder/tools" -mindepth 1 -maxdepth 1 \( -name "$part-????????????????" -mtime +14 -o -name ".$part.??????" \) -exec rm -rf {} +
}

# Prints the path of the Kubernetes OpenAPI document.
print_openapi_path() {
    local folder
    folder=$(module_folder k8s.io/kubernetes "$(required_version kubernetes k8s.io/kubernetes)")
    printf '%s\n' "$folder/api/openapi-spec/swagger.json"
}
