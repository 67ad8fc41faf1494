# Names, addresses and directories of the cluster. This file only sets variables.
# shellcheck shell=bash disable=SC2034 # used by the other files

# TEST_CLUSTER selects another cluster, which can run in parallel with the first cluster. All names below differ between
# the clusters, and the addresses do not collide.
cluster_name=${TEST_CLUSTER:-pulumi-controller-test}
image_prefix=localhost/pulumi-controller-test

# TEST_VERSIONS=oldest selects the oldest tested versions of Kubernetes and source-controller.
cluster_versions=${TEST_VERSIONS:-current}

# Directories for small state (process IDs, sockets, logs, credentials) and for large data (etcd, images, volumes).
# `down` removes both directories.
run_folder=/run/$cluster_name
data_folder=/var/lib/$cluster_name
# Free disk space that `up` requires for the data.
cluster_disk_gib=4

# Directory for persistent files: binaries, image archives and rendered manifests. The name of each file contains a hash
# of its inputs.
cache_folder=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/pulumi-controller

# Addresses in the range for benchmarks (RFC 2544). Only a separate network namespace uses these addresses, so they do
# not collide with other addresses.
node_name=node0
node_address=198.18.0.1
pod_range=198.18.128.0/24
service_range=198.19.0.0/16
kubernetes_service_address=198.19.0.1

api_server=https://$node_address:6443

# Namespace for the test services, on a local node and in an existing cluster.
services_namespace=test-services
# Label on the objects that `up` creates in an existing cluster.
installed_label=pulumi-controller.test/installed-by=cluster
state_bucket=state
s3_access_key=test-access-key
s3_secret_key=test-secret-key
azure_account=teststate
# Base64 encoding of "key of the test storage account".
azure_key=a2V5IG9mIHRoZSB0ZXN0IHN0b3JhZ2UgYWNjb3VudA==
vault_token=test-vault-token

pause_image=$image_prefix/pause:test
services_image=$image_prefix/services:test
pulumi_image=$image_prefix/pulumi:test

flux_version=v2.9.5
flux_checksum=h1:jwCccxvkD+2QnsjN+pl5QqM8KnFUwA8pIoQ1Lf0avkA=
