"use strict";
const pulumi = require("@pulumi/pulumi");
const yaml = require("yaml");

exports.zone = pulumi.output(yaml.parse("zone: a").zone);
