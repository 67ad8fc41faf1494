import * as kubernetes from "@pulumi/kubernetes";
import * as pulumi from "@pulumi/pulumi";

const config = new pulumi.Config();
const labels = { app: "web" };

// With a fixed name, `kubectl` commands are simple. Without `metadata.name`, the provider generates a unique name.
const page = new kubernetes.core.v1.ConfigMap("page", {
    metadata: { name: "web" },
    data: { "index.html": `${config.require("greeting")} from Kubernetes` },
});

const server = new kubernetes.apps.v1.Deployment("server", {
    metadata: { name: "web" },
    spec: {
        replicas: config.requireNumber("replicas"),
        selector: { matchLabels: labels },
        template: {
            metadata: { labels },
            spec: {
                automountServiceAccountToken: false,
                securityContext: {
                    runAsNonRoot: true,
                    runAsUser: 65534,
                    seccompProfile: { type: "RuntimeDefault" },
                },
                containers: [{
                    name: "server",
                    image: config.require("serverImage"),
                    command: ["httpd", "-f", "-p", "8080", "-h", "/www"],
                    ports: [{ containerPort: 8080 }],
                    readinessProbe: { httpGet: { path: "/index.html", port: 8080 } },
                    securityContext: { allowPrivilegeEscalation: false, capabilities: { drop: ["ALL"] } },
                    volumeMounts: [{ name: "page", mountPath: "/www" }],
                }],
                volumes: [{ name: "page", configMap: { name: page.metadata.name } }],
            },
        },
    },
}, {
    // The maximum time that the provider waits until the Deployment is available.
    customTimeouts: { create: "5m", update: "5m" },
});

const service = new kubernetes.core.v1.Service("service", {
    metadata: { name: "web" },
    spec: { selector: labels, ports: [{ port: 80, targetPort: 8080 }] },
}, {
    // The provider waits until the Service has endpoints, so create the pods first.
    dependsOn: server,
});

export const url = pulumi.interpolate`http://${service.metadata.name}.${service.metadata.namespace}`;
export const availableReplicas = server.status.availableReplicas;
