# Certificates, tokens and kubeconfigs for the local node. Each cluster has its own credentials, and `down` removes the
# credentials with the cluster.
# shellcheck shell=bash

credentials_folder=$run_folder/credentials

create_credentials() {
    local folder=$credentials_folder
    (umask 077 && mkdir -p "$folder")
    quietly create_certificates
    : >"$folder/tokens.csv"
    create_user admin admin system:masters
    create_user controller-manager system:kube-controller-manager ""
    create_user scheduler system:kube-scheduler ""
    create_user proxy system:kube-proxy ""
    create_user kubelet "system:node:$node_name" system:nodes
    # CoreDNS does not run as a pod in this cluster, and therefore has no ServiceAccount for a role binding. The group
    # system:masters is acceptable in a test cluster.
    create_user coredns coredns system:masters
    install -m 600 "$folder/admin.kubeconfig" "$run_folder/kubeconfig"
}

create_certificates() {
    cd "$credentials_folder"
    create_authority
    create_certificate api-server "/CN=kube-apiserver" \
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:$node_address,IP:$kubernetes_service_address,IP:127.0.0.1"
    create_certificate api-server-to-kubelet "/O=system:masters/CN=kube-apiserver-kubelet-client" "DNS:unused"
    create_certificate kubelet "/O=system:nodes/CN=system:node:$node_name" "DNS:$node_name,IP:$node_address"
    openssl ecparam -name prime256v1 -genkey -noout -out service-account.key
    openssl ec -in service-account.key -pubout -out service-account.pub
}

create_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 365 -subj "/CN=$cluster_name" \
        -keyout authority.key -out authority.crt
}

# create_certificate NAME SUBJECT ALTERNATIVE-NAMES
create_certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "$2" -keyout "$1.key" -out "$1.csr"
    openssl x509 -req -in "$1.csr" -CA authority.crt -CAkey authority.key -CAcreateserial -days 365 -out "$1.crt" \
        -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$3")
}

# create_user NAME USER GROUP: creates a token, and a kubeconfig that contains the token.
create_user() {
    local name=$1 user=$2 group=$3 token
    token=$(openssl rand -hex 16)
    printf '%s,%s,%s,"%s"\n' "$token" "$user" "$user" "$group" >>"$credentials_folder/tokens.csv"
    cat >"$credentials_folder/$name.kubeconfig" <<END
apiVersion: v1
kind: Config
current-context: $cluster_name
clusters:
  - name: $cluster_name
    cluster:
      server: $api_server
      certificate-authority-data: $(base64 -w 0 <"$credentials_folder/authority.crt")
users:
  - name: $name
    user:
      token: $token
contexts:
  - name: $cluster_name
    context:
      cluster: $cluster_name
      user: $name
END
}
