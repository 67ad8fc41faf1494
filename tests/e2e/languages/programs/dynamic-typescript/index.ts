import * as fs from "fs";
import * as https from "https";
import * as pulumi from "@pulumi/pulumi";

const account = "/var/run/secrets/kubernetes.io/serviceaccount";

/** Calls the Kubernetes API with the ServiceAccount of the pod. */
function call(method: string, name: string, contentType: string, content?: object): Promise<void> {
    const namespace = fs.readFileSync(`${account}/namespace`, "utf8");
    const options: https.RequestOptions = {
        method,
        host: process.env.KUBERNETES_SERVICE_HOST,
        port: process.env.KUBERNETES_SERVICE_PORT,
        path: `/api/v1/namespaces/${namespace}/configmaps${name}`,
        ca: fs.readFileSync(`${account}/ca.crt`),
        headers: {
            Authorization: `Bearer ${fs.readFileSync(`${account}/token`, "utf8")}`,
            "Content-Type": contentType,
        },
    };
    return new Promise((resolve, reject) => {
        const request = https.request(options, (response) => {
            let text = "";
            response.on("data", (part) => (text += part));
            response.on("end", () => {
                const status = response.statusCode ?? 0;
                status < 300 ? resolve() : reject(new Error(`${method} ${name}: ${status} ${text}`));
            });
        });
        request.on("error", reject);
        request.end(content && JSON.stringify(content));
    });
}

interface Inputs {
    name: string;
    text: string;
}

const provider: pulumi.dynamic.ResourceProvider<Inputs, Inputs> = {
    async create(inputs) {
        const object = { metadata: { name: inputs.name }, data: { text: inputs.text } };
        await call("POST", "", "application/json", object);
        return { id: inputs.name, outs: inputs };
    },
    async diff(id, olds, news) {
        return { changes: olds.text !== news.text };
    },
    async update(id, olds, news) {
        await call("PATCH", `/${id}`, "application/merge-patch+json", { data: { text: news.text } });
        return { outs: news };
    },
    async delete(id) {
        await call("DELETE", `/${id}`, "application/json");
    },
};

class ConfigMap extends pulumi.dynamic.Resource {
    declare readonly text: pulumi.Output<string>;

    constructor(name: string, inputs: Inputs) {
        super(provider, name, inputs);
    }
}

const managed = new ConfigMap("managed", { name: "managed", text: "one" });
export const id = managed.id;
export const text = managed.text;
