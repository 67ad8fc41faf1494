# Names, addresses and folders. Nothing here starts or changes anything.
# shellcheck shell=bash disable=SC2034 # used by the other files

# TEST_CLUSTER names another cluster, which runs at the same time as the first: every name below differs, addresses do not collide.
cluster_name=${TEST_CLUSTER:-pulumi-controller-test}
image_prefix=localhost/pulumi-controller-test

# Small state (process ids, sockets, logs, credentials) and big data (etcd, images, volumes). Both are gone after `down`.
run_folder=/run/$cluster_name
data_folder=/var/lib/$cluster_name

# What may stay: binaries, image archives, rendered manifests. Each is named by a hash of what it was made from.
cache_folder=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/pulumi-controller

# Addresses of the benchmark range (RFC 2544): inside a network namespace of their own, so they collide with nothing.
node_name=node0
node_address=198.18.0.1
pod_range=198.18.128.0/24
service_range=198.19.0.0/16
kubernetes_service_address=198.19.0.1

api_server=https://$node_address:6443

# The test services: one set of manifests on our own node and on a user's cluster.
services_namespace=test-services
# What `up` made in a cluster that is not ours.
installed_label=pulumi-controller.test/installed-by=cluster
state_bucket=state
s3_access_key=test-access-key
s3_secret_key=test-secret-key

pause_image=$image_prefix/pause:test
services_image=$image_prefix/services:test
pulumi_image=$image_prefix/pulumi:test

flux_version=v2.9.5
flux_checksum=h1:jwCccxvkD+2QnsjN+pl5QqM8KnFUwA8pIoQ1Lf0avkA=
