# etcd, the API server, the controller manager and the scheduler of the local node.
# shellcheck shell=bash

authentication_configuration=$run_folder/authentication.yaml

start_etcd() {
    # A single etcd member with disposable data needs no fsync, and can have a short election timeout. The benchmarks
    # require a larger quota than the default. Ten thousand Stacks exceed the default quota before the first history
    # compaction.
    start_process etcd "$(tool common etcd)" \
        --data-dir "$data_folder/etcd" \
        --unsafe-no-fsync \
        --quota-backend-bytes $((8 << 30)) \
        --heartbeat-interval 50 \
        --election-timeout 250 \
        --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 \
        --listen-peer-urls http://127.0.0.1:2380 \
        --initial-advertise-peer-urls http://127.0.0.1:2380 \
        --initial-cluster default=http://127.0.0.1:2380 \
        --log-level warn
    wait_for 30 "etcd to respond" "show_log etcd" http_ok 127.0.0.1 2379 /health
}

# Records the writes of each controller pod. A ServiceAccount token contains the pod name.
write_audit_policy() {
    cat >"$run_folder/audit-policy.yaml" <<'END'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
    users: ["system:serviceaccount:flux-system:pulumi-controller"]
    verbs: [create, update, patch, delete, deletecollection]
  - level: None
END
}

# Writes the issuers of JSON Web Tokens that the API server accepts: none, until `cluster oidc` adds an issuer. The API
# server reloads this file only if the API server had the file when it started. After a restart of the API server, an
# added issuer remains. The file does not contain the field `anonymous`, so the flag `--anonymous-auth` applies.
write_authentication_configuration() {
    [[ ! -f $authentication_configuration ]] || return 0
    cat >"$authentication_configuration" <<'END'
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt: []
END
}

start_api_server() {
    local folder=$credentials_folder
    local -a features=()
    # Kubernetes 1.30 does not have the kind MutatingAdmissionPolicy.
    [[ $cluster_versions == oldest ]] || features=(--feature-gates MutatingAdmissionPolicy=true --runtime-config admissionregistration.k8s.io/v1beta1=true)
    write_audit_policy
    write_authentication_configuration
    start_process kube-apiserver "$(tool kubernetes kube-apiserver)" \
        --etcd-servers http://127.0.0.1:2379 \
        --advertise-address "$node_address" \
        --service-cluster-ip-range "$service_range" \
        --cert-dir "$folder" \
        --tls-cert-file "$folder/api-server.crt" \
        --tls-private-key-file "$folder/api-server.key" \
        --client-ca-file "$folder/authority.crt" \
        --token-auth-file "$folder/tokens.csv" \
        --authentication-config "$authentication_configuration" \
        --authorization-mode Node,RBAC \
        --enable-admission-plugins NodeRestriction \
        --service-account-issuer https://kubernetes.default.svc.cluster.local \
        --service-account-signing-key-file "$folder/service-account.key" \
        --service-account-key-file "$folder/service-account.pub" \
        --kubelet-certificate-authority "$folder/authority.crt" \
        --kubelet-client-certificate "$folder/api-server-to-kubelet.crt" \
        --kubelet-client-key "$folder/api-server-to-kubelet.key" \
        --kubelet-preferred-address-types InternalIP \
        --audit-policy-file "$run_folder/audit-policy.yaml" \
        --audit-log-path "$run_folder/logs/audit.log" \
        --audit-log-maxsize 500 --audit-log-maxbackup 1 \
        "${features[@]}" \
        --allow-privileged
    wait_for 60 "the API server to be ready" "show_log kube-apiserver" own_kubectl get --raw /readyz
}

start_controllers() {
    local folder=$credentials_folder
    # The rate limits permit sixty concurrent Stacks. The grace period is long because of API server outages. If the
    # controller manager observes the node's lease late, it must not remove the endpoints of the only node.
    keep_running kube-controller-manager "$(tool kubernetes kube-controller-manager)" \
        --kubeconfig "$folder/controller-manager.kubeconfig" \
        --bind-address 127.0.0.1 \
        --leader-elect=false \
        --use-service-account-credentials \
        --root-ca-file "$folder/authority.crt" \
        --service-account-private-key-file "$folder/service-account.key" \
        --allocate-node-cidrs --cluster-cidr "$pod_range" --node-cidr-mask-size 24 \
        --service-cluster-ip-range "$service_range" \
        --node-monitor-grace-period 300s \
        --kube-api-qps 200 --kube-api-burst 400
    keep_running kube-scheduler "$(tool kubernetes kube-scheduler)" \
        --kubeconfig "$folder/scheduler.kubeconfig" \
        --bind-address 127.0.0.1 \
        --leader-elect=false \
        --kube-api-qps 200 --kube-api-burst 400
}

# Runs kubectl as the administrator of the local node. The timeout prevents an endless wait if the API server hangs.
own_kubectl() {
    in_network timeout 60 "$(tool kubernetes kubectl)" --kubeconfig "$run_folder/kubeconfig" "$@"
}
