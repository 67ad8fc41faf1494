const pulumi = require("@pulumi/pulumi");

exports.zone = pulumi.output("a");
