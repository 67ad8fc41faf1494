"use strict";
const pulumi = require("@pulumi/pulumi");

exports.project = pulumi.getProject();
exports.system = typeof module === "object" ? "commonjs" : "es module";
