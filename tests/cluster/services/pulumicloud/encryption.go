package pulumicloud

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"

	"github.com/pulumi/pulumi/sdk/v3/go/common/apitype"
)

// keySize is the size of an AES-256 key in bytes.
const keySize = 32

// secretKey encrypts with AES-GCM. It implements the encrypter and the decrypter of the evaluator of environments.
type secretKey []byte

func newKey() []byte {
	key := make([]byte, keySize)
	// The function never returns an error.
	_, _ = rand.Read(key)
	return key
}

func (key secretKey) cipher() (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("failed to use an encryption key: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Encrypt returns the random nonce and the ciphertext.
func (key secretKey) Encrypt(_ context.Context, plaintext []byte) ([]byte, error) {
	aead, err := key.cipher()
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, plaintext, nil), nil
}

// Decrypt fails if the ciphertext is from another key.
func (key secretKey) Decrypt(_ context.Context, ciphertext []byte) ([]byte, error) {
	aead, err := key.cipher()
	if err != nil {
		return nil, err
	}
	plaintext, err := aead.Open(nil, nil, ciphertext, nil)
	if err != nil {
		return nil, failure(http.StatusBadRequest, "failed to decrypt the value: it was not encrypted with this key")
	}
	return plaintext, nil
}

func encryptValue(call *call, stack *stack) error {
	var request apitype.EncryptValueRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	ciphertext, err := secretKey(stack.Key).Encrypt(call.Context(), request.Plaintext)
	if err != nil {
		return err
	}
	return call.reply(apitype.EncryptValueResponse{Ciphertext: ciphertext})
}

func encryptValues(call *call, stack *stack) error {
	var request apitype.BatchEncryptRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	response := apitype.BatchEncryptResponse{Ciphertexts: [][]byte{}}
	for _, plaintext := range request.Plaintexts {
		ciphertext, err := secretKey(stack.Key).Encrypt(call.Context(), plaintext)
		if err != nil {
			return err
		}
		response.Ciphertexts = append(response.Ciphertexts, ciphertext)
	}
	return call.reply(response)
}

func decryptValue(call *call, stack *stack) error {
	var request apitype.DecryptValueRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	plaintext, err := secretKey(stack.Key).Decrypt(call.Context(), request.Ciphertext)
	if err != nil {
		return err
	}
	return call.reply(apitype.DecryptValueResponse{Plaintext: plaintext})
}

// decryptValues returns the plaintexts by the base64 form of their ciphertexts.
func decryptValues(call *call, stack *stack) error {
	var request apitype.BatchDecryptRequest
	if err := call.decode(&request); err != nil {
		return err
	}
	response := apitype.BatchDecryptResponse{Plaintexts: map[string][]byte{}}
	for _, ciphertext := range request.Ciphertexts {
		plaintext, err := secretKey(stack.Key).Decrypt(call.Context(), ciphertext)
		if err != nil {
			return err
		}
		response.Plaintexts[base64.StdEncoding.EncodeToString(ciphertext)] = plaintext
	}
	return call.reply(response)
}
