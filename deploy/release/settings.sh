# Names and versions of a release, for the other scripts in this directory.
# shellcheck shell=bash disable=SC2034 # used by the other scripts

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
name=pulumi-controller
source_url=https://github.com/pulumi-controller/pulumi-controller
# Registry and owner of the published artifacts.
registry=ghcr.io/pulumi-controller

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$root/Cargo.toml" | sed -n 1p)
# Tag of the commit, of the image and of the manifests. The tag of the chart is the version without `v`, because Helm
# requires a semantic version.
tag=v$version

# The scripts use the time of the commit instead of the current time, so that the same commit results in the same digests.
find_commit() {
    revision=$(git -C "$root" rev-parse HEAD)
    SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
}

say() {
    printf '%s\n' "$*" >&2
}

die() {
    printf '%s: %s\n' "$program" "$*" >&2
    exit 1
}

# require PROGRAM...: adds the tools for releases to the PATH, and fails if a program is missing.
require() {
    local needed
    PATH=$("$root/tests/cluster/cluster" path)
    for needed in "$@"; do
        type -P "$needed" >/dev/null || die "$needed is not on the PATH: install $needed. To build kubectl, helm, cosign and oras, run 'tests/cluster/cluster release-tools'"
    done
}

# pack ARCHIVE FOLDER FILE...: writes a tar.gz that depends only on the names, the modes and the content of the files.
pack() {
    local archive=$1 folder=$2
    shift 2
    tar --create --directory "$folder" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode='u=rwX,go=rX' "$@" | gzip -n -9 >"$archive"
    touch --date="@$SOURCE_DATE_EPOCH" "$archive"
}
