package pulumicloud

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

const issuerURL = "https://issuer.example.com"

// signer signs ID tokens with a key whose name is the key ID.
type signer struct {
	t   *testing.T
	key *ecdsa.PrivateKey
}

func newSigner(t *testing.T) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{t, key}
}

// trust makes the organization acme trust the key of the signer.
func (cloud *cloud) trust(signer signer, issuer Issuer) {
	cloud.t.Helper()
	issuer.URL = issuerURL
	issuer.Keys.Keys = []jose.JSONWebKey{{Key: signer.key.Public(), KeyID: "key", Algorithm: "ES256", Use: "sig"}}
	cloud.put("/control/organizations/acme/issuers", mustJSON(cloud.t, []Issuer{issuer}))
}

func (signer signer) sign(change func(*jwt.Claims)) string {
	signer.t.Helper()
	key := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: signer.key, KeyID: "key"}}
	created, err := jose.NewSigner(key, nil)
	if err != nil {
		signer.t.Fatal(err)
	}
	claims := jwt.Claims{
		Issuer: issuerURL, Subject: "system:serviceaccount:apps:deployer", Audience: jwt.Audience{"urn:pulumi:org:acme"},
		Expiry: jwt.NewNumericDate(time.Now().Add(time.Minute)),
	}
	if change != nil {
		change(&claims)
	}
	text, err := jwt.Signed(created).Claims(claims).Serialize()
	if err != nil {
		signer.t.Fatal(err)
	}
	return text
}

// exchange sends the request of the CLI.
func (cloud *cloud) exchange(token string, change func(url.Values)) (int, string) {
	cloud.t.Helper()
	form := url.Values{
		"audience": {"urn:pulumi:org:acme"}, "grant_type": {grantTokenExchange}, "subject_token_type": {typeIDToken},
		"requested_token_type": {typePrefix + "organization"}, "scope": {""}, "subject_token": {token}, "expiration": {"60"},
	}
	if change != nil {
		change(form)
	}
	response, err := http.PostForm(cloud.url+"/api/oauth/token", form)
	if err != nil {
		cloud.t.Fatal(err)
	}
	defer response.Body.Close()
	content := make([]byte, 4096)
	size, _ := response.Body.Read(content)
	return response.StatusCode, string(content[:size])
}

func TestOIDCTokenIsExchangedByLogin(t *testing.T) {
	project := newStack(t)
	signer := newSigner(t)
	project.trust(signer, Issuer{Subject: "system:serviceaccount:apps:*"})
	project.environment = append(project.environment, "PULUMI_ACCESS_TOKEN=", "PULUMI_HOME="+filepath.Join(project.directory, "other"))
	file := filepath.Join(project.directory, "token")
	if err := os.WriteFile(file, []byte(signer.sign(nil)), 0o600); err != nil {
		t.Fatal(err)
	}
	project.pulumi("login", project.url, "--oidc-token", "file://"+file, "--oidc-org", "acme", "--oidc-expiration", "1h")
	project.mustContain(project.pulumi("whoami", "--verbose"), "Token type: organization: acme")
	project.pulumi("up", "--yes", "--skip-preview", "--stack", "acme/proof/dev")
	if latest := project.updates()[0]; latest.RequestedBy != "acme" {
		t.Errorf("the update was requested by %q", latest.RequestedBy)
	}
}

func TestInvalidOIDCTokensAreRefused(t *testing.T) {
	cloud := newCloud(t)
	signer := newSigner(t)
	cloud.trust(signer, Issuer{Subject: "system:serviceaccount:apps:*", TokenTypes: []string{"organization", "personal"}})
	for reason, token := range map[string]string{
		"audience":            signer.sign(func(claims *jwt.Claims) { claims.Audience = jwt.Audience{"other"} }),
		"does not trust":      signer.sign(func(claims *jwt.Claims) { claims.Issuer = "https://other.example.com" }),
		"subject":             signer.sign(func(claims *jwt.Claims) { claims.Subject = "system:serviceaccount:other:x" }),
		"expired":             signer.sign(func(claims *jwt.Claims) { claims.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Minute)) }),
		"does not expire":     signer.sign(func(claims *jwt.Claims) { claims.Expiry = nil }),
		"verify the subject":  newSigner(t).sign(nil),
		"decode the subject ": "no token",
	} {
		status, body := cloud.exchange(token, nil)
		if status != http.StatusBadRequest || !strings.Contains(body, reason) || !strings.Contains(body, "invalid_grant") {
			t.Errorf("%s: %d %s", reason, status, body)
		}
	}
	for field, value := range map[string]string{
		"grant_type": "password", "audience": "acme", "subject_token_type": "x", "requested_token_type": typePrefix + "team", "expiration": "x",
	} {
		if status, body := cloud.exchange(signer.sign(nil), func(form url.Values) { form.Set(field, value) }); status != http.StatusBadRequest {
			t.Errorf("%s=%s: %d %s", field, value, status, body)
		}
	}
	personal := func(scope string) (int, string) {
		return cloud.exchange(signer.sign(nil), func(form url.Values) {
			form.Set("requested_token_type", typePrefix+"personal")
			form.Set("scope", scope)
		})
	}
	if status, body := personal("user:nobody"); status != http.StatusBadRequest || !strings.Contains(body, "invalid_scope") {
		t.Errorf("a user that is not a member: %d %s", status, body)
	}
	if status, body := personal("user:alice"); status != http.StatusOK || !strings.Contains(body, "access_token") {
		t.Errorf("a member: %d %s", status, body)
	}
}

func TestExchangedTokenExpires(t *testing.T) {
	cloud := newCloud(t)
	signer := newSigner(t)
	cloud.trust(signer, Issuer{MaxLifetime: Duration(50 * time.Millisecond)})
	status, body := cloud.exchange(signer.sign(nil), nil)
	if status != http.StatusOK {
		t.Fatalf("the exchange got the status %d: %s", status, body)
	}
	var granted apitype.TokenExchangeGrantResponse
	mustDecode(t, body, &granted)
	deadline := time.Now().Add(10 * time.Second)
	for {
		if status, _ := cloud.send("GET", "/api/user", "token "+granted.AccessToken, ""); status == http.StatusUnauthorized {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the token is still valid after ten seconds")
		}
		time.Sleep(20 * time.Millisecond)
	}
}
