import * as pulumi from "@pulumi/pulumi";

export interface GreetingArgs {
    name: pulumi.Input<string>;
}

export class Greeting extends pulumi.ComponentResource {
    public readonly text: pulumi.Output<string>;

    constructor(name: string, args: GreetingArgs, opts?: pulumi.ComponentResourceOptions) {
        super("greetings:index:Greeting", name, args, opts);
        this.text = pulumi.interpolate`typescript greets ${args.name}`;
        this.registerOutputs({ text: this.text });
    }
}
