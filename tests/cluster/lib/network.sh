# Network for the local node: a network namespace with one address and without access to the machine's network.
# shellcheck shell=bash

in_network() {
    nsenter --net="/run/netns/$cluster_name" "$@"
}

create_network() {
    ip netns add "$cluster_name"
    # Uses one end of a veth pair, because some kernels lack the interface type "dummy".
    ip -netns "$cluster_name" -batch - <<END
link set lo up
link add node0 type veth peer name node0p
addr add $node_address/32 dev node0
link set node0 up
link set node0p up
route add default dev node0 src $node_address
END
    # /proc/sys/net contains the settings of the network namespace to which the reading process belongs.
    in_network bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
}

# After the last process has exited, only the name keeps the network namespace. Deleting the name therefore also deletes
# the interfaces.
remove_network() {
    [[ ! -e /run/netns/$cluster_name ]] || ip netns delete "$cluster_name"
}

# http_ok ADDRESS PORT PATH: sends an HTTP request inside the network, and succeeds if the response has the status 200.
# Uses only bash, because other tools can be missing.
http_ok() {
    # shellcheck disable=SC2016 # expanded by the inner shell
    in_network timeout 2 bash -c '
        exec 3<>"/dev/tcp/$1/$2"
        printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$3" "$1" >&3
        read -r version status rest <&3
        [[ $status == 200 ]]' http_ok "$@"
}
