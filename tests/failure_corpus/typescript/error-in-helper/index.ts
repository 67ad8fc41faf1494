import { subnets } from "./network/subnets";

export const addresses = subnets("10.0.0.0/8", 300);
