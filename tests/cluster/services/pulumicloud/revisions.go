package pulumicloud

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// describedRevision is a revision in a response.
type describedRevision struct {
	Number       int       `json:"number"`
	Created      time.Time `json:"created"`
	CreatorLogin string    `json:"creatorLogin"`
	CreatorName  string    `json:"creatorName"`
	Tags         []string  `json:"tags"`
}

// serveRevisions lists revisions, newest first. The parameter before excludes newer revisions, except if it is 0.
func serveRevisions(call *call, environment *environment) error {
	query := call.URL.Query()
	before, count := len(environment.Revisions)+1, len(environment.Revisions)
	for name, target := range map[string]*int{"before": &before, "count": &count} {
		if value := query.Get(name); value != "" {
			number, err := strconv.Atoi(value)
			if err != nil || number < 0 {
				return failure(http.StatusBadRequest, "invalid %s %q: must be a number", name, value)
			}
			if number > 0 {
				*target = number
			}
		}
	}
	revisions := []describedRevision{}
	for _, revision := range slices.Backward(environment.Revisions) {
		if revision.Number >= before || len(revisions) == count {
			continue
		}
		tags := []string{}
		if revision.Number == len(environment.Revisions) {
			tags = append(tags, "latest")
		}
		for _, tag := range slices.Sorted(maps.Keys(environment.Tags)) {
			if environment.Tags[tag] == revision.Number {
				tags = append(tags, tag)
			}
		}
		revisions = append(revisions, describedRevision{
			revision.Number, revision.Created, revision.Creator, revision.Creator, tags,
		})
	}
	return call.reply(revisions)
}

// revisionTag is a tag of a revision in a response.
type revisionTag struct {
	Name        string    `json:"name"`
	Revision    int       `json:"revision"`
	Modified    time.Time `json:"modified"`
	EditorLogin string    `json:"editorLogin"`
}

func (environment *environment) describeTag(name string) (revisionTag, error) {
	number, found := environment.Tags[name]
	if name != "latest" && !found {
		return revisionTag{}, failure(http.StatusNotFound, "Tag '%s' of environment '%s' not found", name, environment.id())
	}
	version := "latest"
	if found {
		version = strconv.Itoa(number)
	}
	revision, err := environment.find(version)
	return revisionTag{name, revision.Number, revision.Created, revision.Creator}, err
}

func serveRevisionTag(call *call, environment *environment) error {
	tag, err := environment.describeTag(call.PathValue("tag"))
	if err != nil {
		return err
	}
	return call.reply(tag)
}

// serveRevisionTags lists the tags in alphabetical order. The CLI sends further requests with the last tag in the
// parameter after, until the response is empty.
func serveRevisionTags(call *call, environment *environment) error {
	tags := []revisionTag{}
	names := append(slices.Collect(maps.Keys(environment.Tags)), "latest")
	slices.Sort(names)
	for _, name := range names {
		if name <= call.URL.Query().Get("after") {
			continue
		}
		tag, err := environment.describeTag(name)
		if err != nil {
			return err
		}
		tags = append(tags, tag)
	}
	return call.reply(map[string]any{"tags": tags, "nextToken": ""})
}

func (server *Server) createRevisionTag(call *call, environment *environment) error {
	var request struct {
		Name     string `json:"name"`
		Revision *int   `json:"revision"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	if _, found := environment.Tags[request.Name]; found || request.Name == "latest" {
		return failure(http.StatusConflict, "Tag '%s' already exists", request.Name)
	}
	if _, err := strconv.Atoi(request.Name); err == nil || !isName(request.Name) {
		return failure(http.StatusBadRequest, "invalid tag %q", request.Name)
	}
	return server.setRevisionTag(call, environment, request.Name, request.Revision)
}

func (server *Server) updateRevisionTag(call *call, environment *environment) error {
	var request struct {
		Revision *int `json:"revision"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	name := call.PathValue("tag")
	if _, found := environment.Tags[name]; !found {
		return failure(http.StatusNotFound, "Tag '%s' of environment '%s' not found", name, environment.id())
	}
	return server.setRevisionTag(call, environment, name, request.Revision)
}

func (server *Server) setRevisionTag(call *call, environment *environment, name string, number *int) error {
	version := ""
	if number != nil {
		version = strconv.Itoa(*number)
	}
	revision, err := environment.find(version)
	if err != nil {
		return err
	}
	environment.Tags[name] = revision.Number
	if err := server.saveEnvironment(environment); err != nil {
		return err
	}
	return call.replyNoContent()
}

func (server *Server) deleteRevisionTag(call *call, environment *environment) error {
	delete(environment.Tags, call.PathValue("tag"))
	if err := server.saveEnvironment(environment); err != nil {
		return err
	}
	return call.replyNoContent()
}

// cloneEnvironment copies one revision to a new environment.
func (server *Server) cloneEnvironment(call *call, source *environment) error {
	var request struct {
		Project string `json:"project"`
		Name    string `json:"name"`
		Version int    `json:"version"`
	}
	if err := call.decode(&request); err != nil {
		return err
	}
	version := ""
	if request.Version > 0 {
		version = strconv.Itoa(request.Version)
	}
	copied, err := source.find(version)
	if err != nil {
		return err
	}
	target := environmentID{source.Organization, cmp.Or(request.Project, source.Project), request.Name}
	created, err := server.addEnvironment(target, call.caller.name, source.Key)
	if err != nil {
		return err
	}
	created.Revisions = append(created.Revisions, revision{2, time.Now(), call.caller.name, copied.YAML})
	if err := server.saveEnvironment(created); err != nil {
		return err
	}
	return call.replyNoContent()
}
