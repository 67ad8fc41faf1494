package pulumicloud

import (
	"net/http"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

func (server *Server) renameStack(call *call, stack *stack) error {
	var request apitype.StackRenameRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	before, after := stack.id(), stack.id()
	if request.NewName != "" {
		after.name = request.NewName
	}
	if request.NewProject != "" {
		after.project = request.NewProject
	}
	if !isName(after.project) || !isName(after.name) {
		return failure(http.StatusBadRequest, "invalid stack name '%s'", after)
	}
	if stack.running() != nil {
		return errConflict
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if after != before && server.stacks[after] != nil {
		return failure(http.StatusConflict, "Stack '%s' already exists", after.name)
	}
	stack.Project, stack.Name = after.project, after.name
	if err := stack.save(); err != nil {
		stack.Project, stack.Name = before.project, before.name
		return err
	}
	delete(server.stacks, before)
	server.stacks[after] = stack
	return call.replyNoContent()
}

// setTags replaces all tags.
func setTags(call *call, stack *stack) error {
	tags := map[string]string{}
	if err := call.decode(&tags); err != nil {
		return err
	}
	stack.Tags = tags
	if err := stack.save(); err != nil {
		return err
	}
	return call.replyNoContent()
}

func serveConfig(call *call, stack *stack) error {
	if stack.Config == nil {
		return failure(http.StatusNotFound, "Stack '%s' has no configuration in the service", stack.id())
	}
	return call.reply(stack.Config)
}

func setConfig(call *call, stack *stack) error {
	var config apitype.StackConfig
	if err := call.decode(&config); err != nil {
		return err
	}
	stack.Config = &config
	if err := stack.save(); err != nil {
		return err
	}
	return call.reply(config)
}

func removeConfig(call *call, stack *stack) error {
	stack.Config = nil
	if err := stack.save(); err != nil {
		return err
	}
	return call.replyNoContent()
}
