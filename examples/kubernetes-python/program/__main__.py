import pulumi
import pulumi_kubernetes as kubernetes

config = pulumi.Config()
labels = {"app": "web"}

# With a fixed name, `kubectl` commands are simple. Without `metadata.name`, the provider generates a unique name.
page = kubernetes.core.v1.ConfigMap(
    "page",
    metadata={"name": "web"},
    data={"index.html": f"{config.require('greeting')} from Kubernetes"},
)

server = kubernetes.apps.v1.Deployment(
    "server",
    metadata={"name": "web"},
    spec={
        "replicas": config.require_int("replicas"),
        "selector": {"match_labels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "automount_service_account_token": False,
                "security_context": {
                    "run_as_non_root": True,
                    "run_as_user": 65534,
                    "seccomp_profile": {"type": "RuntimeDefault"},
                },
                "containers": [
                    {
                        "name": "server",
                        "image": config.require("serverImage"),
                        "command": ["httpd", "-f", "-p", "8080", "-h", "/www"],
                        "ports": [{"container_port": 8080}],
                        "readiness_probe": {"http_get": {"path": "/index.html", "port": 8080}},
                        "security_context": {
                            "allow_privilege_escalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volume_mounts": [{"name": "page", "mount_path": "/www"}],
                    }
                ],
                "volumes": [{"name": "page", "config_map": {"name": page.metadata.name}}],
            },
        },
    },
    # The maximum time that the provider waits until the Deployment is available.
    opts=pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create="5m", update="5m")),
)

service = kubernetes.core.v1.Service(
    "service",
    metadata={"name": "web"},
    spec={"selector": labels, "ports": [{"port": 80, "target_port": 8080}]},
    # The provider waits until the Service has endpoints, so create the pods first.
    opts=pulumi.ResourceOptions(depends_on=[server]),
)

pulumi.export("url", pulumi.Output.concat("http://", service.metadata.name, ".", service.metadata.namespace))
pulumi.export("availableReplicas", server.status.available_replicas)
