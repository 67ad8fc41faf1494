import * as pulumi from "@pulumi/pulumi";

class BucketProvider implements pulumi.dynamic.ResourceProvider {
    async create(inputs: { size: number }): Promise<pulumi.dynamic.CreateResult> {
        if (inputs.size > 100) {
            throw new Error(`quota exceeded: requested ${inputs.size} GiB, available 100 GiB`);
        }
        return { id: "bucket", outs: inputs };
    }
}

class Bucket extends pulumi.dynamic.Resource {
    constructor(name: string, size: number) {
        super(new BucketProvider(), name, { size });
    }
}

new Bucket("logs", 500);
