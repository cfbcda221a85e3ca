{{/* Names are those of the release: `helm install hams` gives hams-controller, hams-etcd. */}}
{{- define "hams.labels" -}}
app.kubernetes.io/name: hams
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "hams.selector" -}}
app.kubernetes.io/name: hams
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "hams.image" -}}
{{ .root.Values.image.registry }}/{{ .name }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Where graphs may be, separated by commas; nothing: everywhere. */}}
{{- define "hams.namespaces" -}}
{{- if not (has "*" .Values.controller.watchNamespaces) }}{{ join "," .Values.controller.watchNamespaces }}{{ end }}
{{- end }}

{{- define "hams.etcd.image" -}}
{{ .Values.etcd.image | default (include "hams.image" (dict "root" . "name" "hams-etcd")) }}
{{- end }}

{{- define "hams.etcd.own" -}}
{{- if not .Values.etcd.endpoints }}true{{ end }}
{{- end }}

{{/* "true" if the etcd that is installed speaks TLS. */}}
{{- define "hams.etcd.secured" -}}
{{- if and .Values.tls.enabled (include "hams.etcd.own" .) }}true{{ end }}
{{- end }}

{{/* For etcdctl: who it is, out of the Secret that the controller makes for members. */}}
{{- define "hams.etcd.identity" -}}
--cacert=/etc/etcd-tls/ca.crt, --cert=/etc/etcd-tls/client.crt, --key=/etc/etcd-tls/client.key
{{- end }}

{{- define "hams.etcd.alive" -}}
[etcdctl, get, hams/alive, --consistency=s, --command-timeout=4s, --endpoints=https://localhost:2379, {{ include "hams.etcd.identity" . }}]
{{- end }}

{{- define "hams.etcd.ready" -}}
[etcdctl, endpoint, health, --command-timeout=4s, --endpoints=https://localhost:2379, {{ include "hams.etcd.identity" . }}]
{{- end }}

{{- define "hams.etcd.mount" -}}
- {name: tls, mountPath: /etc/etcd-tls, readOnly: true}
{{- end }}

{{- define "hams.etcd.volume" -}}
- {name: tls, secret: {secretName: {{ .Release.Name }}-etcd-tls, defaultMode: 0440}}
{{- end }}

{{/* Each member by its own name: a client that loses one goes on with another. */}}
{{- define "hams.etcd.endpoints" -}}
{{- if .Values.etcd.endpoints -}}
{{- $secure := hasPrefix "https:" (first .Values.etcd.endpoints) }}
{{- range .Values.etcd.endpoints }}
{{- if ne (hasPrefix "https:" .) $secure }}{{ fail "etcd.endpoints: http and https are mixed" }}{{ end }}
{{- end }}
{{- if and $secure (not .Values.etcd.tlsSecret) }}{{ fail "etcd.endpoints are https: etcd.tlsSecret has to name a Secret with ca.crt, client-ca.crt and client-ca.key" }}{{ end }}
{{- if and $secure (not .Values.tls.enabled) }}{{ fail "etcd.endpoints are https: tls.enabled has to be true, as certificates for etcd come with the others" }}{{ end }}
{{- if and .Values.etcd.tlsSecret (not $secure) }}{{ fail "etcd.tlsSecret is set, and etcd.endpoints are not https" }}{{ end }}
{{- join "," .Values.etcd.endpoints }}
{{- else -}}
{{- $list := list -}}
{{- range $i := until (int .Values.etcd.replicas) -}}
{{- $list = append $list (printf "%s://%s-etcd-%d.%s-etcd-peers.%s.svc:2379" (ternary "https" "http" $.Values.tls.enabled) $.Release.Name $i $.Release.Name $.Release.Namespace) -}}
{{- end -}}
{{ join "," $list }}
{{- end -}}
{{- end }}

{{/* Prometheus bears the token that the controller has made. */}}
{{- define "hams.metrics.authorization" -}}
{{- if .Values.tls.enabled -}}
authorization: {credentials: {name: {{ .Release.Name }}-metrics, key: token}}
{{- end }}
{{- end }}

{{- define "hams.restricted" -}}
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
readOnlyRootFilesystem: true
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "hams.pod" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Whence the images of a pod come, and where it may run: `of` is `controller` or `etcd`. */}}
{{- define "hams.placement" -}}
{{- $values := index .root.Values .of }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
