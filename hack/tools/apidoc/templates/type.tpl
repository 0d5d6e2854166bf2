{{- define "type" -}}
{{- $type := . -}}
{{- if markdownShouldRenderType $type }}
### {{ $type.Name }}

{{ $type.Doc }}
{{ if $type.References }}
Used in:{{ range $i, $r := $type.SortedReferences }}{{ if $i }},{{ end }} {{ markdownRenderTypeLink $r }}{{ end }}.
{{ end }}
{{- with index $type.Markers "kubebuilder:validation:XValidation" }}
Rules:
{{ range . }}
- {{ .Message }}
{{- end }}
{{ end }}
{{- if $type.Members }}
| Field | Type | Default | Description |
| --- | --- | --- | --- |
{{- if $type.GVK }}
| `apiVersion` | string | | `{{ $type.GVK.Group }}/{{ $type.GVK.Version }}` |
| `kind` | string | | `{{ $type.GVK.Kind }}` |
{{- end }}
{{- range $type.Members }}
| `{{ .Name }}`{{ if index .Markers "required" }} **required**{{ end }} | {{ markdownRenderType .Type }} | {{ template "default" . }} | {{ template "type_members" . }} |
{{- end }}
{{ end }}
{{- if $type.EnumValues }}
| Value | Meaning |
| --- | --- |
{{- range $type.EnumValues }}
| `{{ .Name }}` | {{ template "prose" (regexReplaceAll "^\\w+ " .Doc "") }} |
{{- end }}
{{ end }}
{{- end -}}
{{- end -}}

{{- define "default" -}}
{{- with .Default }}`{{ . }}`{{ end -}}
{{- end -}}

{{- /* A table cell is one line: join the lines of a comment as Markdown would. */ -}}
{{- define "prose" -}}
{{ . | replace "\n" " " | replace "|" "\\|" | trim }}
{{- end -}}
