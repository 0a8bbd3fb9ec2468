// Package evaluatorpb is the generated client and server code of Porch's function
// evaluator, as Porch's own programs hold it.
package evaluatorpb

//go:generate go run ../internal/generate .
