// Package evaluatorpb is generated client and server code for Porch's function
// evaluator. Porch's own programs use the same code.
package evaluatorpb

//go:generate go run ../internal/generate .
