// Package library is a local module of the repository.
package library

// Text is an output of the program.
const Text = "one"
