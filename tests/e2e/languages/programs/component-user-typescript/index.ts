import * as pulumi from "@pulumi/pulumi";

/** The component, which runs in the process of its own language. */
class Greeting extends pulumi.ComponentResource {
    declare readonly text: pulumi.Output<string>;

    constructor(name: string, args: { name: pulumi.Input<string> }) {
        super("greetings:index:Greeting", name, { ...args, text: undefined }, {}, true /*remote*/);
    }
}

export const text = new Greeting("hello", { name: "typescript" }).text;
