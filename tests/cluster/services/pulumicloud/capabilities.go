package pulumicloud

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// smallestDelta is the default size in bytes from which the CLI uploads checkpoints as deltas. The value of the public
// service is higher than the size of the state of a test, so the CLI would upload no deltas.
const smallestDelta = 1024

// newestDeployment is the newest version of the deployment schema.
const newestDeployment = 4

func (server *Server) capabilities(call *call) error {
	cutoff := smallestDelta
	if call.caller != nil {
		for _, name := range call.caller.organizations() {
			if settings := server.settings(name); settings.CheckpointCutoffBytes > 0 {
				cutoff = settings.CheckpointCutoffBytes
			}
		}
	}
	return call.reply(apitype.CapabilitiesResponse{Capabilities: []apitype.APICapabilityConfig{
		{
			Capability: apitype.DeltaCheckpointUploadsV2, Version: 2,
			Configuration: json.RawMessage(fmt.Sprintf(`{"checkpointCutoffSizeBytes":%d}`, cutoff)),
		},
		{Capability: apitype.BatchEncrypt},
		{
			Capability: apitype.DeploymentSchemaVersion, Version: 1,
			Configuration: json.RawMessage(fmt.Sprintf(`{"version":%d}`, newestDeployment)),
		},
		{Capability: apitype.StackPolicyPacks, Version: 1},
	}})
}

var cliVersion = regexp.MustCompile(`^pulumi-cli/1 \(v?([0-9][^;]*);`)

// newestVersion responds that the CLI is up to date.
func newestVersion(call *call) error {
	match := cliVersion.FindStringSubmatch(call.UserAgent())
	if match == nil {
		return failure(http.StatusBadRequest, "the User-Agent %q contains no version of the CLI", call.UserAgent())
	}
	return call.reply(apitype.CLIVersionResponse{LatestVersion: match[1], OldestWithoutWarning: match[1]})
}
