package pulumicloud

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// console serves a page for each permalink that the CLI prints: ORGANIZATION/PROJECT/STACK, followed by
// /updates/VERSION or /previews/ID.
func (server *Server) console(response http.ResponseWriter, request *http.Request) {
	segments := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
	if request.Method != http.MethodGet || (len(segments) != 3 && len(segments) != 5) {
		http.NotFound(response, request)
		return
	}
	request.SetPathValue("organization", segments[0])
	request.SetPathValue("project", segments[1])
	request.SetPathValue("stack", segments[2])
	stack, err := server.lockStack(request)
	if err != nil {
		http.Error(response, err.Error(), http.StatusNotFound)
		return
	}
	defer stack.lock.Unlock()
	if len(segments) == 3 {
		fmt.Fprintf(response, "stack %s, version %d\n", stack.id(), stack.Version)
		return
	}
	for _, update := range stack.updates {
		isPreview := segments[3] == "previews" && update.Preview && update.ID == segments[4]
		isUpdate := segments[3] == "updates" && !update.Preview && !update.Started.IsZero() && strconv.Itoa(update.Version) == segments[4]
		if isPreview || isUpdate {
			fmt.Fprintf(response, "%s of the stack %s, version %d: %s\n", update.Kind, stack.id(), update.Version, update.Status)
			return
		}
	}
	http.NotFound(response, request)
}
