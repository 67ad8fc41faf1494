# Debian packages that the node requires.
# shellcheck shell=bash

cni_plugins=/usr/lib/cni

# For each package, a file or a command that exists only if the package is installed.
declare -A package_proof=(
    [containerd]=containerd
    [runc]=runc
    [containernetworking-plugins]=$cni_plugins/ptp
    [iptables]=iptables
    [iproute2]=ip
    [conntrack]=conntrack
    [ethtool]=ethtool
    [socat]=socat
    [buildah]=buildah
    [busybox-static]=/bin/busybox
    [git]=git
    [openssh-server]=sshd
    [openssl]=openssl
    [curl]=curl
)

install_packages() {
    # Debian installs half of these programs in sbin directories, which are not on every user's PATH.
    PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
    local package
    local -a missing=()
    for package in "${!package_proof[@]}"; do
        type -P "${package_proof[$package]}" >/dev/null || missing+=("$package")
    done
    ((${#missing[@]} > 0)) || return 0
    require_root
    type -P apt-get >/dev/null || die "these packages are missing, and apt-get is not available: ${missing[*]}. Install them, or select an existing cluster with TEST_KUBECONFIG"
    step "installed Debian packages: ${missing[*]}" install_missing "${missing[@]}"
}

install_missing() {
    local log
    log=$(mktemp)
    if ! without_starting_services apt_get_install "$@" >"$log" 2>&1 9>&-; then
        tail -n 15 "$log" >&2
        rm -f "$log"
        die "failed to install $* (see above): install these packages, and run this command again"
    fi
    rm -f "$log"
}

apt_get_install() {
    local -a install=(apt-get install --yes --no-install-recommends "$@")
    export DEBIAN_FRONTEND=noninteractive
    "${install[@]}" || { apt-get update && "${install[@]}"; }
}

# Debian starts a service after installation and at every boot. policy-rc.d prevents the start. The node requires only
# the containerd and sshd programs, and not the services.
without_starting_services() {
    local policy=/usr/sbin/policy-rc.d ours="" result=0 had_containerd="" had_sshd=""
    type -P containerd >/dev/null && had_containerd=yes
    type -P sshd >/dev/null && had_sshd=yes
    if [[ ! -e $policy ]]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    "$@" || result=$?
    [[ -z $ours ]] || rm -f "$policy"
    if [[ -z $had_containerd ]] && type -P systemctl >/dev/null; then
        systemctl disable containerd || true
    fi
    if [[ -z $had_sshd ]] && type -P systemctl >/dev/null; then
        systemctl disable ssh || true
    fi
    return "$result"
}
