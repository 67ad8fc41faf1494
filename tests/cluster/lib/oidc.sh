# Dex, an OIDC issuer whose ID tokens the API server of a local node accepts. Dex is a process on the node, and its URL
# contains the address of the node, because the API server, the pods and a browser must connect to the same URL. Neither
# the API server nor a browser in the network of the cluster can resolve the names of Services.
# shellcheck shell=bash

oidc_folder=$run_folder/oidc
oidc_address=$node_address:5554
oidc_issuer=https://$oidc_address/dex
oidc_client=pulumi-web-ui
# Host of the web UI. The client can redirect users only to this host.
oidc_ui_host=pulumi.example.com
oidc_user=jane@example.com
oidc_password=test-password
# The API server adds this prefix to the names of users, so that no token of the issuer can name another user.
oidc_prefix=oidc:

own_node_oidc() {
    require_running_node
    # The oldest tested API server does not report which configuration it uses.
    [[ $cluster_versions == current ]] || die "the command oidc does not support TEST_VERSIONS=$cluster_versions"
    build_missing_part dex "OIDC issuer"
    if is_running dex; then
        say "Dex is already running"
    else
        step "Dex is running" start_dex
    fi
    step "the API server accepts the ID tokens of Dex" trust_oidc_issuer
    write_oidc_variables
}

users_cluster_oidc() {
    die "cannot change the authentication settings of an existing cluster"
}

start_dex() {
    [[ -d $oidc_folder ]] || create_oidc_credentials
    start_process dex "$(tool dex dex)" \
        --addr "$oidc_address" \
        --tls-cert "$oidc_folder/dex.crt" \
        --tls-key "$oidc_folder/dex.key" \
        --issuer "$oidc_issuer" \
        --client-id "$oidc_client" \
        --client-secret-file "$oidc_folder/client-secret" \
        --redirect-url "https://$oidc_ui_host/sign-in/oidc/callback" \
        --email "$oidc_user" \
        --password "$oidc_password"
    wait_for 30 "Dex to respond" "show_log dex" dex_responds
}

# Dex and the web UI have their own authority, so a client trusts their certificates only if its settings contain this
# authority. The function renames the directory at the end, so an interrupted call leaves no partial result.
create_oidc_credentials() {
    local scratch=$oidc_folder.new
    rm -rf "$scratch"
    (umask 077 && mkdir -p "$scratch")
    quietly create_oidc_certificates "$scratch"
    # The secret ends with the character "=", which the web UI must encode in the header `Authorization`.
    openssl rand -base64 32 >"$scratch/client-secret"
    mv "$scratch" "$oidc_folder"
}

create_oidc_certificates() {
    cd "$1"
    create_authority
    create_certificate dex "/CN=dex" "IP:$node_address"
    create_certificate ui "/CN=$oidc_ui_host" "DNS:$oidc_ui_host"
}

dex_responds() {
    in_network curl --silent --fail --max-time 2 --noproxy '*' --cacert "$oidc_folder/authority.crt" \
        "$oidc_issuer/.well-known/openid-configuration"
}

# The API server reads a changed file immediately, but uses the file only after it has connected to the issuer. The API
# server checks the connection every ten seconds.
trust_oidc_issuer() {
    write_oidc_issuer >"$authentication_configuration.new"
    mv "$authentication_configuration.new" "$authentication_configuration"
    wait_for 120 "the API server to accept the issuer $oidc_issuer" "show_log kube-apiserver" authentication_configuration_is_used
}

write_oidc_issuer() {
    cat <<END
apiVersion: apiserver.config.k8s.io/v1beta1
kind: AuthenticationConfiguration
jwt:
  - issuer:
      url: $oidc_issuer
      audiences: [$oidc_client]
      certificateAuthority: |
$(sed 's/^/        /' "$oidc_folder/authority.crt")
    claimMappings:
      username: {claim: email, prefix: "$oidc_prefix"}
END
}

# Succeeds if the API server reports the hash of the current file.
authentication_configuration_is_used() {
    local hash metrics
    hash=$(sha256sum <"$authentication_configuration")
    metrics=$(own_kubectl get --raw /metrics)
    grep -q "^apiserver_authentication_config_controller_last_config_info{.*,hash=\"sha256:${hash%% *}\"" <<<"$metrics"
}

write_oidc_variables() {
    printf '%s\n' \
        "OIDC_ISSUER=$oidc_issuer" \
        "OIDC_CLIENT_ID=$oidc_client" \
        "OIDC_UI_URL=https://$oidc_ui_host" \
        "OIDC_USER=$oidc_user" \
        "OIDC_PASSWORD=$oidc_password" \
        "OIDC_USER_IN_CLUSTER=$oidc_prefix$oidc_user" \
        "OIDC_FILES=$oidc_folder" >"$run_folder/oidc-variables"
}
