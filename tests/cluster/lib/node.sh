# containerd, the kubelet, kube-proxy and DNS of the local node.
# shellcheck shell=bash

containerd_socket=$run_folder/containerd.sock

start_containerd() {
    write_containerd_configuration
    write_pod_network
    start_process containerd unshare --mount --propagation private \
        bash "$cluster_folder/lib/node-view.sh" "$run_folder" "$data_folder" \
        containerd --config "$run_folder/containerd.toml"
    wait_for 30 "containerd to respond" "show_log containerd" containerd_client version
}

containerd_client() {
    ctr --address "$containerd_socket" --namespace k8s.io "$@"
}

write_containerd_configuration() {
    local snapshotter=overlayfs cri='plugins."io.containerd.grpc.v1.cri"'
    # Uses the snapshotter `native` if the directory is on overlayfs, for example in a container, because overlayfs does
    # not work on overlayfs.
    [[ $(stat --file-system --format %T "$data_folder") != overlayfs ]] || snapshotter=native
    cat >"$run_folder/containerd.toml" <<END
version = 2
root = "$data_folder/containerd"
state = "$run_folder/containerd"

[grpc]
  address = "$containerd_socket"

[debug]
  level = "warn"

[plugins."io.containerd.internal.v1.opt"]
  path = "$data_folder/containerd-opt"

[$cri]
  sandbox_image = "$pause_image"
  stream_server_address = "127.0.0.1"
  # Without CAP_SYS_RESOURCE, for example in a sandbox, runc must not lower its oom_score_adj, because it would fail
  # with "can't get final child's PID from pipe: EOF".
  restrict_oom_score_adj = true

[$cri.containerd]
  snapshotter = "$snapshotter"
  default_runtime_name = "runc"

[$cri.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[$cri.containerd.runtimes.runc.options]
  Root = "$run_folder/runc"
  SystemdCgroup = false

[$cri.cni]
  bin_dir = "$cni_plugins"
  conf_dir = "$run_folder/cni"
END
}

# Each pod has one veth pair and one route. Every packet therefore passes the node's iptables rules, and kube-proxy does
# not need br_netfilter. The API server accepts NetworkPolicies, but the node does not enforce them.
write_pod_network() {
    mkdir -p "$run_folder/cni"
    cat >"$run_folder/cni/10-pods.conflist" <<END
{
  "cniVersion": "0.4.0",
  "name": "$cluster_name",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "$pod_range"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": "$run_folder/cni-addresses"
      }
    }
  ]
}
END
}

start_kubelet() {
    write_kubelet_configuration
    start_process kubelet nsenter --mount="/proc/$(process_id containerd)/ns/mnt" "$(tool kubernetes kubelet)" \
        --config "$run_folder/kubelet.yaml" \
        --kubeconfig "$credentials_folder/kubelet.kubeconfig" \
        --root-dir "$data_folder/kubelet" \
        --cert-dir "$credentials_folder" \
        --hostname-override "$node_name" \
        --node-ip "$node_address"
}

write_kubelet_configuration() {
    # Pods resolve only names in the cluster, because the machine's name servers are not reachable.
    : >"$run_folder/resolv.conf"
    cat >"$run_folder/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$containerd_socket
tlsCertFile: $credentials_folder/kubelet.crt
tlsPrivateKeyFile: $credentials_folder/kubelet.key
authentication:
  x509:
    clientCAFile: $credentials_folder/authority.crt
clusterDomain: cluster.local
clusterDNS: ["$node_address"]
resolvConf: $run_folder/resolv.conf
volumePluginDir: $data_folder/kubelet-plugins
podLogsDir: $data_folder/pod-logs
# This cgroup contains all processes of pods, so that the command down can find these processes.
cgroupRoot: /$cluster_name
cgroupDriver: cgroupfs
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
maxPods: 250
serializeImagePulls: false
# The kubelet updates mounted Secrets and ConfigMaps at the next pod sync.
syncFrequency: 10s
# The kubelet must not remove images to free disk space. The images come from archives, so the kubelet could not pull
# them again.
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 50Mi
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
  imagefs.inodesFree: 0%
END
}

start_proxy() {
    start_process kube-proxy "$(tool kubernetes kube-proxy)" \
        --kubeconfig "$credentials_folder/proxy.kubeconfig" \
        --hostname-override "$node_name" \
        --proxy-mode iptables \
        --iptables-min-sync-period 100ms \
        --cluster-cidr "$pod_range" \
        --conntrack-max-per-core 0 \
        --oom-score-adj 0 \
        --healthz-bind-address 127.0.0.1:10256 \
        --metrics-bind-address 127.0.0.1:10249
}

# DNS is a process that listens on the node's address, because DNS must run before all pods. DNS has no cache, so new
# Services are visible immediately.
start_dns() {
    cat >"$run_folder/Corefile" <<END
cluster.local in-addr.arpa {
    bind $node_address
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {
        kubeconfig $credentials_folder/coredns.kubeconfig
    }
}
. {
    bind $node_address
    template ANY ANY {
        rcode NXDOMAIN
    }
}
END
    start_process coredns "$(tool common coredns)" -conf "$run_folder/Corefile" -dns.port 53
}

# import_image NAME ARCHIVE
import_image() {
    local name=$1 archive=$2 answer known
    answer=$(containerd_client images import "$archive" 2>&1) || die "failed to import $archive into containerd: $answer"
    known=$(containerd_client images ls --quiet)
    # containerd adds a default registry to an image name without a registry.
    grep -qxE "(.*/)?$name" <<<"$known" ||
        die "$archive does not contain the image $name. It contains: $(sed -n 's/^unpacking \([^ ]*\).*/\1/p' <<<"$answer" | tr '\n' ' ')"
}
