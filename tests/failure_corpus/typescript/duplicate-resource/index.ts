import * as pulumi from "@pulumi/pulumi";

class Bucket extends pulumi.ComponentResource {
    constructor(name: string) {
        super("example:storage:Bucket", name);
    }
}

for (const zone of ["a", "b"]) {
    new Bucket("logs");
}
