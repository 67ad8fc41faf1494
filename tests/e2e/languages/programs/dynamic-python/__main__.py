import pulumi
from pulumi import dynamic


def call(method, name, content_type, content=None):
    """Calls the Kubernetes API with the ServiceAccount of the pod."""
    import json
    import os
    import ssl
    import urllib.request

    account = "/var/run/secrets/kubernetes.io/serviceaccount"

    def read(file):
        with open(f"{account}/{file}") as opened:
            return opened.read()

    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    request = urllib.request.Request(
        f"https://{host}:{port}/api/v1/namespaces/{read('namespace')}/configmaps{name}",
        method=method,
        data=None if content is None else json.dumps(content).encode(),
        headers={"Authorization": f"Bearer {read('token')}", "Content-Type": content_type},
    )
    context = ssl.create_default_context(cafile=f"{account}/ca.crt")
    with urllib.request.urlopen(request, context=context) as response:
        response.read()


class ConfigMapProvider(dynamic.ResourceProvider):
    def create(self, props):
        metadata = {"name": props["name"]}
        call("POST", "", "application/json", {"metadata": metadata, "data": {"text": props["text"]}})
        return dynamic.CreateResult(props["name"], {"name": props["name"], "text": props["text"]})

    def diff(self, id, olds, news):
        return dynamic.DiffResult(changes=olds["text"] != news["text"])

    def update(self, id, olds, news):
        call("PATCH", f"/{id}", "application/merge-patch+json", {"data": {"text": news["text"]}})
        return dynamic.UpdateResult({"name": news["name"], "text": news["text"]})

    def delete(self, id, props):
        call("DELETE", f"/{id}", "application/json")


class ConfigMap(dynamic.Resource):
    text: pulumi.Output[str]

    def __init__(self, name, text):
        super().__init__(ConfigMapProvider(), name, {"name": name, "text": text})


managed = ConfigMap("managed", "one")
pulumi.export("id", managed.id)
pulumi.export("text", managed.text)
