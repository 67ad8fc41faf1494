package network

// VPC is a virtual network.
type VPC struct {
	Name    string
	Subnets []string
}

var known = map[string]*VPC{"frontend": {Name: "frontend", Subnets: []string{"10.0.0.0/24"}}}

// Find returns a network by its name, or nil if it does not exist.
func Find(name string) *VPC {
	return known[name]
}

// Subnet returns the first subnet of a network.
func Subnet(vpc *VPC) string {
	return first(vpc)
}

func first(vpc *VPC) string {
	return vpc.Subnets[0]
}
