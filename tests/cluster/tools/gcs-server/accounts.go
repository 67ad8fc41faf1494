package main

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2/jws"
)

const (
	tokenPath   = "/token"
	controlPath = "/control/"
	healthPath  = "/healthz"
	caPath      = "/ca.crt"

	grantType     = "urn:ietf:params:oauth:grant-type:jwt-bearer"
	tokenLifetime = time.Hour
	keyBits       = 2048
	// maxKeys limits the memory of a server that runs for a long time.
	maxKeys = 1000
	// maxTokensPerKey is larger than the number of CLI calls of a test. Each call requests a token.
	maxTokensPerKey = 10_000
	maxForm         = 64 * 1024
)

// accounts contains the keys of service accounts and their access tokens.
type accounts struct {
	tokenURL string

	mutex sync.Mutex
	keys  map[string]*accountKey
}

type accountKey struct {
	public *rsa.PublicKey
	email  string
	// tokens contains the time at which each access token expires.
	tokens map[string]time.Time
}

// keyFile is the JSON file of a service account key, which Google Cloud returns when it creates the key.
type keyFile struct {
	Type         string `json:"type"`
	ProjectID    string `json:"project_id"`
	PrivateKeyID string `json:"private_key_id"`
	PrivateKey   string `json:"private_key"`
	ClientEmail  string `json:"client_email"`
	ClientID     string `json:"client_id"`
	TokenURI     string `json:"token_uri"`
}

func newAccounts(tokenURL string) *accounts {
	return &accounts{tokenURL: tokenURL, keys: map[string]*accountKey{}}
}

// handler adds authentication to the handler of the storage. Storage paths do not pass through a ServeMux, because it
// redirects paths that contain empty segments. The certificate is available without authentication.
func (a *accounts) handler(storage http.Handler, certificate []byte) http.Handler {
	control := http.NewServeMux()
	control.HandleFunc("GET "+healthPath, func(http.ResponseWriter, *http.Request) {})
	control.HandleFunc("GET "+caPath, func(response http.ResponseWriter, _ *http.Request) {
		_ = pem.Encode(response, &pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	})
	control.HandleFunc("POST "+tokenPath, a.exchange)
	control.HandleFunc("POST "+controlPath+"keys", a.createKey)
	control.HandleFunc("DELETE "+controlPath+"keys/{id}", a.deleteKey)
	return http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		path := request.URL.Path
		switch {
		case path == healthPath || path == caPath || path == tokenPath || strings.HasPrefix(path, controlPath):
			control.ServeHTTP(response, request)
		case a.isAuthenticated(request):
			storage.ServeHTTP(response, request)
		default:
			writeJSON(response, http.StatusUnauthorized, map[string]any{"error": map[string]any{
				"code": http.StatusUnauthorized, "message": "Invalid Credentials",
				"errors": []map[string]string{{"domain": "global", "reason": "authError", "message": "Invalid Credentials"}},
			}})
		}
	})
}

// createKey creates a key of a service account, and returns the file with the key.
func (a *accounts) createKey(response http.ResponseWriter, _ *http.Request) {
	private, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
		return
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		http.Error(response, err.Error(), http.StatusInternalServerError)
		return
	}
	file := keyFile{
		Type:         "service_account",
		ProjectID:    "test",
		PrivateKeyID: randomHex(),
		PrivateKey:   string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})),
		ClientEmail:  "pulumi@test.iam.gserviceaccount.com",
		ClientID:     "1",
		TokenURI:     a.tokenURL,
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if len(a.keys) >= maxKeys {
		http.Error(response, "the maximum number of keys exists: delete a key", http.StatusTooManyRequests)
		return
	}
	a.keys[file.PrivateKeyID] = &accountKey{public: &private.PublicKey, email: file.ClientEmail, tokens: map[string]time.Time{}}
	writeJSON(response, http.StatusOK, file)
}

// deleteKey deletes a key and its access tokens.
func (a *accounts) deleteKey(response http.ResponseWriter, request *http.Request) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	id := request.PathValue("id")
	if _, exists := a.keys[id]; !exists {
		http.Error(response, "no key has the ID "+id, http.StatusNotFound)
		return
	}
	delete(a.keys, id)
}

// exchange exchanges an assertion for an access token (RFC 7523).
func (a *accounts) exchange(response http.ResponseWriter, request *http.Request) {
	request.Body = http.MaxBytesReader(response, request.Body, maxForm)
	if err := request.ParseForm(); err != nil || request.PostForm.Get("grant_type") != grantType {
		writeJSON(response, http.StatusBadRequest, map[string]string{"error": "unsupported_grant_type"})
		return
	}
	token, err := a.issue(request.PostForm.Get("assertion"))
	if err != nil {
		writeJSON(response, http.StatusBadRequest, map[string]string{"error": "invalid_grant", "error_description": err.Error()})
		return
	}
	writeJSON(response, http.StatusOK, map[string]any{
		"access_token": token, "token_type": "Bearer", "expires_in": int(tokenLifetime.Seconds()),
	})
}

var errSignature = errors.New("Invalid JWT Signature.")

var errClaims = errors.New("Invalid JWT: the issuer, the audience or the expiration time is wrong.")

func (a *accounts) issue(assertion string) (string, error) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	key, claims, err := a.verify(assertion)
	if err != nil {
		return "", err
	}
	if claims.Aud != a.tokenURL {
		return "", errClaims
	}
	if len(key.tokens) >= maxTokensPerKey {
		return "", errors.New("The maximum number of access tokens of this key exists.")
	}
	token := randomHex()
	key.tokens[token] = time.Now().Add(tokenLifetime)
	return token, nil
}

// verify returns the key that has signed a JWT, and the claims of the JWT. The caller holds the mutex.
func (a *accounts) verify(signed string) (*accountKey, *jws.ClaimSet, error) {
	header, _, _ := strings.Cut(signed, ".")
	decoded, err := base64.RawURLEncoding.DecodeString(header)
	if err != nil {
		return nil, nil, errSignature
	}
	var parsed jws.Header
	if err := json.Unmarshal(decoded, &parsed); err != nil {
		return nil, nil, errSignature
	}
	key := a.keys[parsed.KeyID]
	if key == nil || jws.Verify(signed, key.public) != nil {
		return nil, nil, errSignature
	}
	claims, err := jws.Decode(signed)
	if err != nil || claims.Iss != key.email || claims.Exp < time.Now().Unix() {
		return nil, nil, errClaims
	}
	return key, claims, nil
}

// isAuthenticated returns whether a request contains an access token: a token that this server has issued, or a JWT that
// the client has signed (https://google.aip.dev/auth/4111).
func (a *accounts) isAuthenticated(request *http.Request) bool {
	token, isBearer := strings.CutPrefix(request.Header.Get("Authorization"), "Bearer ")
	if !isBearer {
		return false
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, key := range a.keys {
		if expires, exists := key.tokens[token]; exists {
			return time.Now().Before(expires)
		}
	}
	_, claims, err := a.verify(token)
	return err == nil && claims.Scope != ""
}

func randomHex() string {
	bytes := make([]byte, 20)
	// Read never returns an error.
	_, _ = rand.Read(bytes)
	return hex.EncodeToString(bytes)
}

func writeJSON(response http.ResponseWriter, status int, body any) {
	response.Header().Set("Content-Type", "application/json")
	response.WriteHeader(status)
	_ = json.NewEncoder(response).Encode(body)
}
