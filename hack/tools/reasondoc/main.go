// Copyright The seatpool Authors.
// SPDX-License-Identifier: Apache-2.0

// Command reasondoc prints the string constants of a Go file as Markdown: one
// section per const block, one row per constant.
//
// The conditions, reasons and causes of the API are constants, not types, so a
// generator of CRD references does not see them. Programs act on them all the
// same, so docs/api.md lists them too, from the comments they already have.
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: reasondoc FILE.go")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "reasondoc:", err)
		os.Exit(1)
	}
}

func run(path string, out io.Writer) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		return err
	}
	sections, err := collect(file)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	_, err = io.WriteString(out, render(sections))
	return err
}

// section is one documented const block.
type section struct {
	// title is the first sentence of the block's comment, intro the rest.
	title, intro string
	constants    []constant
}

type constant struct {
	name, value, doc string
}

func collect(file *ast.File) ([]section, error) {
	var sections []section
	for _, decl := range file.Decls {
		block, ok := decl.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			continue
		}
		s := section{}
		s.title, s.intro = splitSentence(prose(block.Doc.Text()))
		if s.title == "" {
			return nil, errors.New("a const block has no comment; add one, its first sentence becomes the heading")
		}
		for _, spec := range block.Specs {
			c, err := read(spec.(*ast.ValueSpec))
			if err != nil {
				return nil, err
			}
			s.constants = append(s.constants, c)
		}
		sections = append(sections, s)
	}
	if len(sections) == 0 {
		return nil, errors.New("there are no constants in it to document")
	}
	return sections, nil
}

func read(spec *ast.ValueSpec) (constant, error) {
	name := spec.Names[0].Name
	doc := prose(spec.Doc.Text())
	if !strings.HasPrefix(doc, name+" ") {
		return constant{}, fmt.Errorf("the comment of %s does not begin with its name", name)
	}
	if len(spec.Names) != 1 || len(spec.Values) != 1 {
		return constant{}, fmt.Errorf("%s is not declared alone, with its value on the same line", name)
	}
	literal, ok := spec.Values[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return constant{}, fmt.Errorf("%s is not a string literal", name)
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return constant{}, fmt.Errorf("%s: %w", name, err)
	}
	return constant{name: name, value: value, doc: capitalise(strings.TrimPrefix(doc, name+" "))}, nil
}

func render(sections []section) string {
	values := map[string]string{}
	for _, s := range sections {
		for _, c := range s.constants {
			values[c.name] = c.value
		}
	}
	// Readers of the reference see values, never the names Go gives them.
	identifier := regexp.MustCompile(`\b[A-Z]\w+\b`)
	spell := func(text string) string {
		return identifier.ReplaceAllStringFunc(text, func(word string) string {
			if value, ok := values[word]; ok {
				return "`" + value + "`"
			}
			return word
		})
	}

	var b strings.Builder
	b.WriteString("\n## Conditions, reasons and events\n")
	for _, s := range sections {
		fmt.Fprintf(&b, "\n### %s\n\n", strings.TrimSuffix(s.title, "."))
		if s.intro != "" {
			fmt.Fprintf(&b, "%s\n\n", spell(s.intro))
		}
		b.WriteString("| Value | Meaning |\n| --- | --- |\n")
		for _, c := range s.constants {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, strings.ReplaceAll(spell(c.doc), "|", `\|`))
		}
	}
	return b.String()
}

// prose joins the lines of a comment, since a table cell is a single line.
func prose(comment string) string {
	return strings.Join(strings.Fields(comment), " ")
}

// splitSentence parts the first sentence of a comment, up to a full stop,
// comma or colon, from what follows it.
func splitSentence(text string) (first, rest string) {
	end := strings.IndexAny(text, ".,:")
	if end < 0 {
		return text, ""
	}
	if text[end] == '.' {
		return text[:end+1], strings.TrimSpace(text[end+1:])
	}
	return text[:end], capitalise(strings.TrimSpace(text[end+1:]))
}

func capitalise(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if size == 0 {
		return text
	}
	return string(unicode.ToUpper(first)) + text[size:]
}
