import * as pulumi from "@pulumi/pulumi";

export interface Arguments {
    port: number;
}

export class Service extends pulumi.ComponentResource {
    constructor(name: string, { port }: Arguments, options?: pulumi.ComponentResourceOptions) {
        super("example:app:Service", name, {}, options);
        this.check(port);
        this.registerOutputs({ port });
    }

    private check(port: number) {
        if (port > 65535) {
            throw new Error(`invalid port ${port}`);
        }
    }
}
