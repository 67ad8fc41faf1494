package pulumicloud

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

const (
	grantTokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	grantRefresh       = "refresh_token"
	typeIDToken        = "urn:ietf:params:oauth:token-type:id_token"
	typePrefix         = "urn:pulumi:token-type:access_token:"
	// longestToken and defaultToken are the maximum and the default lifetime of an access token of a token exchange.
	longestToken = 24 * time.Hour
	defaultToken = 2 * time.Hour
)

// Issuer is an OIDC issuer that an organization trusts.
type Issuer struct {
	// URL is the issuer of the tokens.
	URL string `json:"url"`
	// Keys are the public keys of the issuer, as in its JWKS document.
	Keys jose.JSONWebKeySet `json:"jwks"`
	// Audience is the required audience. The default is urn:pulumi:org:ORGANIZATION.
	Audience string `json:"audience,omitempty"`
	// Subject is a pattern for the subject, in which * matches all characters except /. The default matches all subjects.
	Subject string `json:"subject,omitempty"`
	// TokenTypes are the allowed types of access tokens: organization, team, personal. The default is all types.
	TokenTypes []string `json:"tokenTypes,omitempty"`
	// MaxLifetime limits the lifetime of the access tokens. The default is 24 hours.
	MaxLifetime Duration `json:"maxLifetime,omitempty"`
}

func (issuer *Issuer) check() error {
	if issuer.URL == "" || len(issuer.Keys.Keys) == 0 {
		return errors.New("url and jwks are required")
	}
	if _, err := path.Match(issuer.Subject, ""); err != nil {
		return fmt.Errorf("invalid subject %q: %w", issuer.Subject, err)
	}
	for _, kind := range issuer.TokenTypes {
		if kind != "organization" && kind != "team" && kind != "personal" {
			return fmt.Errorf("invalid token type %q: must be organization, team or personal", kind)
		}
	}
	if issuer.MaxLifetime < 0 {
		return errors.New("maxLifetime must not be negative")
	}
	return nil
}

// grantError is an error response of RFC 6749, section 5.2.
type grantError struct {
	Code        string `json:"error"`
	Description string `json:"error_description"`
}

func (err *grantError) Error() string {
	return err.Code + ": " + err.Description
}

func refuse(code, format string, arguments ...any) error {
	return &grantError{code, fmt.Sprintf(format, arguments...)}
}

// signatures are the accepted algorithms. Symmetric algorithms are not safe with public keys.
var signatures = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// exchangeToken exchanges an ID token of an issuer for an access token, as in RFC 8693.
func (server *Server) exchangeToken(call *call) error {
	response, err := server.grant(call)
	var refused *grantError
	if errors.As(err, &refused) {
		writeJSON(call.response, http.StatusBadRequest, refused)
		return nil
	}
	if err != nil {
		return err
	}
	call.response.Header().Set("Cache-Control", "no-store")
	return call.reply(response)
}

func (server *Server) grant(call *call) (*apitype.TokenExchangeGrantResponse, error) {
	if err := call.ParseForm(); err != nil {
		return nil, refuse("invalid_request", "failed to decode the form: %v", err)
	}
	form := call.PostForm
	switch grant := form.Get("grant_type"); {
	case grant == grantRefresh:
		return nil, refuse("invalid_grant", "the test server issues no refresh tokens")
	case grant != grantTokenExchange:
		return nil, refuse("unsupported_grant_type", "unsupported grant_type %q: must be %s", grant, grantTokenExchange)
	case form.Get("subject_token_type") != typeIDToken:
		return nil, refuse("invalid_request", "unsupported subject_token_type %q: must be %s", form.Get("subject_token_type"), typeIDToken)
	}
	name, found := strings.CutPrefix(form.Get("audience"), audiencePrefix)
	if !found {
		return nil, refuse("invalid_request", "invalid audience %q: must be %sORGANIZATION", form.Get("audience"), audiencePrefix)
	}
	kind, found := strings.CutPrefix(form.Get("requested_token_type"), typePrefix)
	if !found {
		return nil, refuse("invalid_request", "unsupported requested_token_type %q", form.Get("requested_token_type"))
	}
	server.mutex.Lock()
	defer server.mutex.Unlock()
	organization := server.accounts.Organizations[name]
	if organization == nil {
		return nil, refuse("invalid_grant", "organization %q not found", name)
	}
	issuer, claims, err := organization.verify(name, form.Get("subject_token"))
	if err != nil {
		return nil, err
	}
	granted, err := organization.scope(name, kind, form.Get("scope"), issuer)
	if err != nil {
		return nil, err
	}
	lifetime, err := issuer.lifetime(form.Get("expiration"))
	if err != nil {
		return nil, err
	}
	granted.Name = "oidc:" + claims.Subject
	granted.Expires = time.Now().Add(lifetime)
	value := "pul-" + randomID()
	server.accounts.Tokens[value] = granted
	if err := server.saveAccounts(); err != nil {
		return nil, err
	}
	return &apitype.TokenExchangeGrantResponse{
		AccessToken: value, IssuedTokenType: typePrefix + kind, TokenType: "token", ExpiresIn: int64(lifetime.Seconds()),
		Scope: form.Get("scope"),
	}, nil
}

// verify finds the issuer of an ID token, and checks the signature, audience, subject and time.
func (organization *organization) verify(name, text string) (*Issuer, *jwt.Claims, error) {
	parsed, err := jwt.ParseSigned(text, signatures)
	if err != nil {
		return nil, nil, refuse("invalid_grant", "failed to decode the subject token: %v", err)
	}
	var unverified jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&unverified); err != nil {
		return nil, nil, refuse("invalid_grant", "failed to decode the subject token: %v", err)
	}
	problem := refuse("invalid_grant", "the organization %s does not trust the issuer %q", name, unverified.Issuer)
	// An organization can trust an issuer for several subjects.
	for index := range organization.Issuers {
		issuer := &organization.Issuers[index]
		if issuer.URL != unverified.Issuer {
			continue
		}
		var claims jwt.Claims
		if err := parsed.Claims(issuer.Keys, &claims); err != nil {
			problem = refuse("invalid_grant", "failed to verify the subject token with the keys of the issuer %q: %v", issuer.URL, err)
			continue
		}
		expected := jwt.Expected{Issuer: issuer.URL, AnyAudience: jwt.Audience{cmp.Or(issuer.Audience, audiencePrefix+name)}, Time: time.Now()}
		if err := claims.ValidateWithLeeway(expected, 0); err != nil {
			problem = refuse("invalid_grant", "failed to verify the subject token: %v", err)
			continue
		}
		if claims.Expiry == nil {
			problem = refuse("invalid_grant", "the subject token does not expire")
			continue
		}
		if matched, _ := path.Match(issuer.Subject, claims.Subject); issuer.Subject != "" && !matched {
			problem = refuse("invalid_grant", "the subject %q does not match the subject of the issuer %q", claims.Subject, issuer.URL)
			continue
		}
		return issuer, &claims, nil
	}
	return nil, nil, problem
}

// scope returns the access token for a token type and a scope: team:NAME, user:NAME or an empty scope.
func (organization *organization) scope(name, kind, scope string, issuer *Issuer) (token, error) {
	if len(issuer.TokenTypes) > 0 && !slices.Contains(issuer.TokenTypes, kind) {
		return token{}, refuse("invalid_grant", "the issuer %q allows no tokens of the type %s", issuer.URL, kind)
	}
	switch kind {
	case "organization":
		return token{Organization: name}, nil
	case "team":
		team, found := strings.CutPrefix(scope, "team:")
		if !found || team == "" {
			return token{}, refuse("invalid_scope", "invalid scope %q: must be team:NAME", scope)
		}
		return token{Organization: name, Team: team}, nil
	case "personal":
		user, found := strings.CutPrefix(scope, "user:")
		if _, member := organization.Members[user]; !found || !member {
			members := slices.Sorted(maps.Keys(organization.Members))
			return token{}, refuse("invalid_scope", "invalid scope %q: must be user:NAME with one of the members %s of %s",
				scope, strings.Join(members, ", "), name)
		}
		return token{User: user}, nil
	default:
		return token{}, refuse("invalid_request", "unsupported token type %q: must be organization, team or personal", kind)
	}
}

// lifetime returns the lifetime of an access token. Without a request, it is two hours.
func (issuer *Issuer) lifetime(requested string) (time.Duration, error) {
	seconds := 0
	if requested != "" {
		var err error
		if seconds, err = strconv.Atoi(requested); err != nil || seconds < 0 {
			return 0, refuse("invalid_request", "invalid expiration %q: must be a number of seconds", requested)
		}
	}
	lifetime := defaultToken
	if seconds > 0 {
		lifetime = time.Duration(min(seconds, int(longestToken.Seconds()))) * time.Second
	}
	if issuer.MaxLifetime > 0 {
		lifetime = min(lifetime, time.Duration(issuer.MaxLifetime))
	}
	return lifetime, nil
}
