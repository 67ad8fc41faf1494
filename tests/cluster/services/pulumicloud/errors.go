package pulumicloud

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// failure returns an error response of the service. Its message starts with the text of the status.
func failure(status int, format string, arguments ...any) error {
	return &apitype.ErrorResponse{Code: status, Message: http.StatusText(status) + ": " + fmt.Sprintf(format, arguments...)}
}

var (
	errUnauthorized = failure(http.StatusUnauthorized, "No credentials provided or are invalid.")
	errForbidden    = &apitype.ErrorResponse{Code: http.StatusForbidden, Message: "Forbidden"}
	errConflict     = failure(http.StatusConflict, "Another update is currently in progress.")
	errCompleted    = failure(http.StatusConflict, "The Update has already completed")
	// The messages about update tokens do not start with the text of the status.
	errTokenExpired = &apitype.ErrorResponse{Code: http.StatusForbidden, Message: "The provided update token has expired"}
	errTokenInvalid = &apitype.ErrorResponse{Code: http.StatusForbidden, Message: "The provided update token is invalid"}
)

// writeError writes an error response. The service describes its own errors, so that a test fails with the cause.
func writeError(response http.ResponseWriter, err error) {
	var known *apitype.ErrorResponse
	var diagnosed *diagnosedError
	switch {
	case errors.As(err, &diagnosed):
		writeJSON(response, http.StatusBadRequest, diagnosed)
	case errors.As(err, &known):
		writeJSON(response, known.Code, known)
	default:
		writeJSON(response, http.StatusInternalServerError, &apitype.ErrorResponse{
			Code: http.StatusInternalServerError, Message: "Internal Server Error: " + err.Error(),
		})
	}
}

func writeJSON(response http.ResponseWriter, status int, value any) {
	content, err := json.Marshal(value)
	if err != nil {
		http.Error(response, fmt.Sprintf("failed to encode the response: %v", err), http.StatusInternalServerError)
		return
	}
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	// The only possible error is a closed connection, which cannot be reported.
	_, _ = response.Write(content)
}
