import * as pulumi from "@pulumi/pulumi";

import * as lodash from "lodash";

export const zones = pulumi.output(lodash.uniq(["a", "b", "a"]));
