package pulumicloud

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// longestBody is the maximum size of the body of a request in bytes, before and after decompression.
const longestBody = 64 << 20

// call is a request to the API.
type call struct {
	*http.Request
	response http.ResponseWriter
	// caller is the owner of the access token. It is nil if the request has no valid access token.
	caller *caller
}

type callerKey struct{}

// open calls a handler that needs no access token.
func (server *Server) open(handle func(*call) error) http.Handler {
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		caller, _ := request.Context().Value(callerKey{}).(*caller)
		if err := handle(&call{request, response, caller}); err != nil {
			writeError(response, err)
		}
	})
}

// authenticated calls a handler that needs a valid access token.
func (server *Server) authenticated(handle func(*call) error) http.Handler {
	return server.open(func(call *call) error {
		if call.caller == nil {
			return errUnauthorized
		}
		return handle(call)
	})
}

// inOrganization calls a handler that needs access to the organization in the path.
func (server *Server) inOrganization(handle func(call *call, organization string) error) http.Handler {
	return server.authenticated(func(call *call) error {
		organization := call.PathValue("organization")
		if err := call.caller.checkAccess(organization, call.Method); err != nil {
			return err
		}
		return handle(call, organization)
	})
}

// identify adds the owner of the access token to a request.
func (server *Server) identify(request *http.Request) (*http.Request, *caller) {
	token, found := strings.CutPrefix(request.Header.Get("Authorization"), "token ")
	if !found {
		return request, nil
	}
	caller := server.findCaller(token)
	if caller == nil {
		return request, nil
	}
	return request.WithContext(context.WithValue(request.Context(), callerKey{}, caller)), caller
}

// read returns the body of the request. The CLI compresses large bodies.
func (call *call) read() ([]byte, error) {
	var body io.Reader = call.Body
	switch encoding := call.Header.Get("Content-Encoding"); encoding {
	case "":
	case "gzip", "x-gzip":
		decompressed, err := gzip.NewReader(call.Body)
		if err != nil {
			return nil, failure(http.StatusBadRequest, "failed to decompress the body: %v", err)
		}
		body = io.LimitReader(decompressed, longestBody+1)
	default:
		return nil, failure(http.StatusUnsupportedMediaType, "unsupported Content-Encoding %q: must be gzip", encoding)
	}
	content, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge) || len(content) > longestBody:
		return nil, failure(http.StatusRequestEntityTooLarge, "the body must not exceed %d bytes", longestBody)
	case err != nil:
		return nil, failure(http.StatusBadRequest, "failed to read the body: %v", err)
	}
	return content, nil
}

// decode decodes the JSON body of the request. A field that is unknown to this version of the API is ignored.
func (call *call) decode(into any) error {
	content, err := call.read()
	if err != nil {
		return err
	}
	// Some requests of the CLI have an empty body in place of an empty object.
	if len(bytes.TrimSpace(content)) == 0 {
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return failure(http.StatusBadRequest, "failed to decode the body: %v", err)
	}
	return nil
}

func (call *call) reply(value any) error {
	writeJSON(call.response, http.StatusOK, value)
	return nil
}

func (call *call) replyNoContent() error {
	call.response.WriteHeader(http.StatusNoContent)
	return nil
}

// externalURL returns the URL of a path of this server, as the client can reach it.
func (call *call) externalURL(path string) string {
	return fmt.Sprintf("http://%s%s", call.Host, path)
}
