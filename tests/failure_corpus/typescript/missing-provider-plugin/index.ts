import * as pulumi from "@pulumi/pulumi";

class Password extends pulumi.CustomResource {
    constructor(name: string, length: number) {
        super("vault-example:index:Password", name, { length });
    }
}

new Password("password", 16);
