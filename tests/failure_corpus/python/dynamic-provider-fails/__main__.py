import pulumi

from pulumi.dynamic import CreateResult, Resource, ResourceProvider


class BucketProvider(ResourceProvider):
    def create(self, props):
        if props["size"] > 100:
            raise ValueError(f"quota exceeded: requested {props['size']} GiB, available 100 GiB")
        return CreateResult(id_="bucket", outs=props)


class Bucket(Resource):
    def __init__(self, name: str, size: int):
        super().__init__(BucketProvider(), name, {"size": size})


Bucket("logs", 500)
