package pulumicloud

import (
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// history returns the started updates without previews, newest first.
func (stack *stack) history() []*update {
	return stack.sortedUpdates(func(update *update) bool {
		return !update.Preview && update.Status != apitype.StatusNotStarted
	})
}

func (stack *stack) sortedUpdates(include func(*update) bool) []*update {
	result := slices.SortedFunc(maps.Values(stack.updates), func(a, b *update) int {
		if a.Version != b.Version && !a.Preview && !b.Preview {
			return b.Version - a.Version
		}
		return b.Created.Compare(a.Created)
	})
	return slices.DeleteFunc(result, func(update *update) bool { return !include(update) })
}

func (update *update) info() apitype.UpdateInfo {
	info := apitype.UpdateInfo{
		Kind: update.Kind, StartTime: update.Started.Unix(), Message: update.Program.Metadata.Message,
		Environment: update.Program.Metadata.Environment, Config: update.Program.Config, Version: update.Version,
		ResourceChanges: update.ResourceChanges, ResourceCount: update.ResourceCount,
	}
	switch update.Status {
	case apitype.StatusNotStarted, apitype.StatusRequested:
		info.Result = apitype.NotStartedResult
	case apitype.StatusRunning:
		info.Result = apitype.InProgressResult
	case apitype.StatusSucceeded:
		info.Result = apitype.SucceededResult
	default:
		info.Result = apitype.FailedResult
	}
	if !update.Ended.IsZero() {
		info.EndTime = update.Ended.Unix()
	}
	return info
}

// page returns the elements of a page that the parameters page and pageSize select. Without pageSize, it returns all
// elements.
func page[T any](call *call, all []T) ([]T, error) {
	query := call.URL.Query()
	if query.Get("pageSize") == "" {
		return all, nil
	}
	size, err := strconv.Atoi(query.Get("pageSize"))
	if err != nil || size < 1 {
		return nil, failure(http.StatusBadRequest, "invalid pageSize %q: must be a positive number", query.Get("pageSize"))
	}
	number := 1
	if value := query.Get("page"); value != "" {
		if number, err = strconv.Atoi(value); err != nil || number < 1 {
			return nil, failure(http.StatusBadRequest, "invalid page %q: must be a positive number", value)
		}
	}
	// The division avoids the overflow of a product.
	if number-1 > len(all)/size {
		return nil, nil
	}
	begin := (number - 1) * size
	return all[min(begin, len(all)):min(begin+size, len(all))], nil
}

func serveHistory(call *call, stack *stack) error {
	updates, err := page(call, stack.history())
	if err != nil {
		return err
	}
	response := apitype.GetHistoryResponse{Updates: []apitype.UpdateInfo{}}
	for _, update := range updates {
		response.Updates = append(response.Updates, update.info())
	}
	return call.reply(response)
}

// describedUpdate is the description of a single update. The public module has no type for this response.
type describedUpdate struct {
	Info        apitype.UpdateInfo `json:"info"`
	UpdateID    string             `json:"updateID"`
	Version     int                `json:"version"`
	RequestedBy userInfo           `json:"requestedBy"`
}

func replyUpdate(call *call, update *update) error {
	requester := userInfo{Name: update.RequestedBy, GitHubLogin: update.RequestedBy}
	return call.reply(describedUpdate{update.info(), update.ID, update.Version, requester})
}

func serveLatestUpdate(call *call, stack *stack) error {
	history := stack.history()
	if len(history) == 0 {
		return failure(http.StatusNotFound, "Stack '%s' has no updates", stack.id())
	}
	return replyUpdate(call, history[0])
}

func serveUpdateByVersion(call *call, stack *stack) error {
	for _, update := range stack.history() {
		if strconv.Itoa(update.Version) == call.PathValue("version") {
			return replyUpdate(call, update)
		}
	}
	return failure(http.StatusNotFound, "Update %s of stack '%s' not found", call.PathValue("version"), stack.id())
}

// servePreviews lists previews, oldest first unless asc=false.
func servePreviews(call *call, stack *stack) error {
	type preview struct {
		UpdateID string `json:"updateID"`
	}
	previews := []preview{}
	for _, update := range stack.sortedUpdates(func(update *update) bool { return update.Preview }) {
		previews = append(previews, preview{update.ID})
	}
	if call.URL.Query().Get("asc") != "false" {
		slices.Reverse(previews)
	}
	previews, err := page(call, previews)
	if err != nil {
		return err
	}
	return call.reply(map[string]any{"updates": previews})
}

// serveUpdateStatus returns the status of an update. The CLI waits for the end of an import with this request.
func serveUpdateStatus(call *call, _ *stack, update *update) error {
	response := apitype.UpdateResults{Status: update.Status, Events: []apitype.UpdateEvent{}}
	if update.Status == apitype.StatusRunning || update.Status == apitype.StatusNotStarted {
		token := update.ID
		response.ContinuationToken = &token
	}
	return call.reply(response)
}
