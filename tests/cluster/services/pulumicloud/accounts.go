package pulumicloud

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// Role is the role of a user in an organization.
type Role string

const (
	// Admin and Member can send all requests.
	Admin  Role = "admin"
	Member Role = "member"
	// Reader can only read, and gets 403 from all other requests.
	Reader Role = "reader"
)

// organization contains the settings of an organization.
type organization struct {
	Members  map[string]Role `json:"members"`
	Settings Settings        `json:"settings"`
	Issuers  []Issuer        `json:"issuers,omitempty"`
	Policies policies        `json:"policies"`
}

// token is an access token.
type token struct {
	Name string `json:"name"`
	User string `json:"user,omitempty"`
	// Organization is set in the tokens of an organization or team.
	Organization string    `json:"organization,omitempty"`
	Team         string    `json:"team,omitempty"`
	Expires      time.Time `json:"expires,omitzero"`
}

func (token token) isExpired() bool {
	return !token.Expires.IsZero() && time.Now().After(token.Expires)
}

// accounts is the content of accounts.json.
type accounts struct {
	Organizations map[string]*organization `json:"organizations"`
	Tokens        map[string]token         `json:"tokens"`
}

// caller is the owner of an access token at the time of a request.
type caller struct {
	// name is the user, or the organization of a token without a user.
	name  string
	token token
	roles map[string]Role
}

func (server *Server) loadAccounts() error {
	server.accounts = accounts{Organizations: map[string]*organization{}, Tokens: map[string]token{}}
	path := filepath.Join(server.root, "accounts.json")
	if _, err := os.Stat(path); os.IsNotExist(err) {
		return nil
	}
	return readJSONFile(path, &server.accounts)
}

// saveAccounts requires server.mutex. It also forgets expired tokens.
func (server *Server) saveAccounts() error {
	maps.DeleteFunc(server.accounts.Tokens, func(_ string, token token) bool { return token.isExpired() })
	return writeJSONFile(filepath.Join(server.root, "accounts.json"), server.accounts)
}

// findCaller returns nil if the token is unknown, revoked or expired.
func (server *Server) findCaller(value string) *caller {
	server.mutex.Lock()
	defer server.mutex.Unlock()
	token, found := server.accounts.Tokens[value]
	if !found || token.isExpired() {
		return nil
	}
	found = false
	result := &caller{name: token.User, token: token, roles: map[string]Role{}}
	for name, organization := range server.accounts.Organizations {
		switch role, member := organization.Members[token.User]; {
		case token.Organization == "" && member:
			result.roles[name], found = role, true
		case token.Organization == name:
			result.roles[name], found = Admin, true
		}
	}
	if token.Organization != "" {
		result.name = token.Organization
	}
	if !found {
		return nil
	}
	return result
}

// organizations returns the organizations of the caller in alphabetical order.
func (caller *caller) organizations() []string {
	return slices.Sorted(maps.Keys(caller.roles))
}

// checkAccess hides an organization from users that are not members, as the service does.
func (caller *caller) checkAccess(organization, method string) error {
	role, found := caller.roles[organization]
	if !found {
		return failure(http.StatusNotFound, "Organization '%s' not found", organization)
	}
	if role == Reader && method != http.MethodGet && method != http.MethodHead {
		return errForbidden
	}
	return nil
}

func (server *Server) addAccountRoutes(api *http.ServeMux) {
	api.Handle("GET /api/user", server.authenticated(serveUser))
	api.Handle("GET /api/user/organizations/default", server.authenticated(func(call *call) error {
		response := apitype.GetDefaultOrganizationResponse{}
		if organizations := call.caller.organizations(); len(organizations) > 0 {
			response.GitHubLogin = organizations[0]
		}
		return call.reply(response)
	}))
	api.Handle("GET /api/orgs/{organization}/members", server.inOrganization(server.serveMembers))
}

// userInfo is a user or an organization in a response.
type userInfo struct {
	Name        string `json:"name"`
	GitHubLogin string `json:"githubLogin"`
	AvatarURL   string `json:"avatarUrl"`
	Email       string `json:"email,omitempty"`
}

// tokenInfo describes the access token of the request.
type tokenInfo struct {
	Name         string `json:"name"`
	Organization string `json:"organization,omitempty"`
	Team         string `json:"team,omitempty"`
}

// user is the response to GET /api/user. The public module has no type for this response.
type user struct {
	ID            string     `json:"id"`
	GitHubLogin   string     `json:"githubLogin"`
	Name          string     `json:"name"`
	Email         string     `json:"email"`
	AvatarURL     string     `json:"avatarUrl"`
	Organizations []userInfo `json:"organizations"`
	Identities    []string   `json:"identities"`
	// TokenInfo describes the token of an organization or a team. The CLI prints "unknown" for the token of a user that has
	// a description.
	TokenInfo *tokenInfo `json:"tokenInfo,omitempty"`
}

func serveUser(call *call) error {
	caller := call.caller
	response := user{
		ID: caller.name, GitHubLogin: caller.name, Name: caller.name, Email: caller.name + "@example.com",
		Organizations: []userInfo{}, Identities: []string{},
	}
	if token := caller.token; token.Organization != "" {
		response.TokenInfo = &tokenInfo{Name: token.Name, Organization: token.Organization, Team: token.Team}
	}
	for _, name := range caller.organizations() {
		response.Organizations = append(response.Organizations, userInfo{Name: name, GitHubLogin: name})
	}
	return call.reply(response)
}

func (server *Server) serveMembers(call *call, name string) error {
	type member struct {
		Role          Role     `json:"role"`
		User          userInfo `json:"user"`
		KnownToPulumi bool     `json:"knownToPulumi"`
	}
	members := []member{}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	if organization := server.accounts.Organizations[name]; organization != nil {
		for _, user := range slices.Sorted(maps.Keys(organization.Members)) {
			members = append(members, member{organization.Members[user], userInfo{Name: user, GitHubLogin: user}, true})
		}
	}
	return call.reply(map[string]any{"members": members})
}
