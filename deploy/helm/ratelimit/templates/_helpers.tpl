{{- define "ratelimit.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "ratelimit.fullname" -}}
{{- $name := include "ratelimit.name" . -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}
{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{/* What selects the pods: never changed, since a Deployment's selector cannot be. */}}
{{- define "ratelimit.selector" -}}
app.kubernetes.io/name: {{ include "ratelimit.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* Of a resource, with its own ones: (list . own). The first of these that has a name says it; what selects is never replaced. */}}
{{- define "ratelimit.labels" -}}
{{- $own := index . 1 -}}
{{- with index . 0 -}}
{{- $chart := dict
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
-}}
{{- merge (include "ratelimit.selector" . | fromYaml) $own .Values.commonLabels $chart | toYaml }}
{{- end }}
{{- end }}

{{- define "ratelimit.rulesConfigMap" -}}
{{ .Values.rules.existingConfigMap | default (printf "%s-rules" (include "ratelimit.fullname" .)) }}
{{- end }}

{{/* Combinations that would run and limit wrongly, or not start: the error says what to change. */}}
{{- define "ratelimit.check" -}}
{{- $v := .Values -}}
{{- if eq $v.store "memory" -}}
  {{- if or $v.autoscaling.enabled (gt (int $v.replicaCount) 1) -}}
    {{- fail "several pods need counters that they share: with store=memory each would allow the whole limit. Set store=redis and redis.url, or replicaCount=1 and autoscaling.enabled=false" -}}
  {{- end -}}
  {{- if gt (int $v.workers) 1 -}}
    {{- fail "several workers need counters that they share: set store=redis and redis.url, or workers=1" -}}
  {{- end -}}
{{- else if not $v.redis.url -}}
  {{- fail "store=redis needs redis.url, such as redis-master:6379" -}}
{{- end -}}
{{- range $name, $one := dict "redis" $v.redis "redis.perSecond" $v.redis.perSecond "redis.home" $v.redis.home -}}
  {{- if and $one.url (eq $one.type "sentinel") (not (regexMatch "^[^,:@]+,." $one.url)) -}}
    {{- fail (printf "%s.type=sentinel needs the name of the primary and its sentinels in %s.url, such as mymaster,host:26379,host:26379" $name $name) -}}
  {{- else if and (eq $one.type "single") (regexMatch "^[^@?]+," $one.url) -}}
    {{- fail (printf "%s.url has several addresses: set %s.type to sentinel or cluster" $name $name) -}}
  {{- end -}}
{{- end -}}
{{- $rules := 0 -}}
{{- range $name, $text := $v.rules.files -}}
  {{- if regexMatch "^[^.].*[.]ya?ml$" $name -}}
    {{- $rules = add1 $rules -}}
    {{- with (fromYaml $text).Error }}{{ fail (printf "rules.files: %s cannot be read: %s" $name .) }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.rules.files (not $rules) -}}
  {{- fail "rules.files has no file of rules: their names end in .yaml or .yml; others are only lists that rules name" -}}
{{- end -}}
{{- if and $v.rules.controlPlane.url (or $v.rules.files $v.rules.existingConfigMap $v.rules.volume $v.rules.folder $v.rules.check) -}}
  {{- fail "rules.controlPlane is in place of files: leave rules.files, existingConfigMap, volume, folder and check as they are" -}}
{{- end -}}
{{- if and $v.rules.check $v.rules.volume -}}
  {{- fail "rules.check is for rules.files and rules.existingConfigMap: rules.volume is empty before its container runs" -}}
{{- end -}}
{{- $known := .Files.Lines "files/settings.txt" -}}
{{- range $name, $_ := $v.env -}}
  {{- with get (include "ratelimit.instead" $ | fromYaml) $name -}}
    {{- fail (printf "env.%s cannot be set: %s" $name .) -}}
  {{- end -}}
  {{- $family := printf "%s_" (splitList "_" $name | first) -}}
  {{- range ternary list $known (has $name $known) -}}
    {{- if hasPrefix $family . -}}
      {{- fail (printf "env.%s is not a setting of docs/settings.md, and looks like one; what another program reads goes to envFrom" $name) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- if and $v.regions.names (not (has $v.regions.name $v.regions.names)) -}}
  {{- fail "regions.names needs regions.name, the one of them that this release is in" -}}
{{- end -}}
{{- if and $v.redis.home.url (lt (len $v.regions.names) 2) -}}
  {{- fail "redis.home is shared by several regions: set regions.names and regions.name" -}}
{{- end -}}
{{- if and $v.redis.tls.cert (not $v.redis.tls.key) -}}
  {{- fail "redis.tls.cert needs redis.tls.key, the private key of that certificate" -}}
{{- end -}}
{{- if and $v.admin.readNeedsToken $v.admin.optional -}}
  {{- fail "admin.readNeedsToken needs the token: set admin.optional=false, and make the Secret" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled $v.networkPolicy.debugFrom (eq $v.admin.host "127.0.0.1") -}}
  {{- fail "networkPolicy.debugFrom opens 6070 to other pods, which listens on loopback alone: set admin.host=::" -}}
{{- end -}}
{{- if and $v.podMonitor.enabled $v.serviceMonitor.enabled -}}
  {{- fail "podMonitor and serviceMonitor would scrape every pod twice: enable one of them" -}}
{{- end -}}
{{- end }}

{{/* What stands in place of a name in `env`, which the manifests follow. */}}
{{- define "ratelimit.instead" -}}
PORT: &ports containers have ports of their own, so the chart's are fixed
GRPC_PORT: *ports
DEBUG_PORT: *ports
BACKEND_TYPE: set store
WORKERS: set workers
INSTANCES: set replicaCount, or autoscaling.maxReplicas
REDIS_TYPE: set redis.type
REDIS_URL: set redis.url
RULES_PATH: set rules.folder
CONFIG_TYPE: &plane set rules.controlPlane.url
CONFIG_GRPC_XDS_SERVER_URL: *plane
CONFIG_GRPC_XDS_NODE_ID: set rules.controlPlane.nodeId
DRAIN_SECONDS: set drain.seconds, which the pod's grace follows
DRAIN_TIMEOUT: set drain.timeoutSeconds, which the pod's grace follows
ADMIN_READ_NEEDS_TOKEN: set admin.readNeedsToken
ADMIN_TLS_CERT: &admin set admin.tlsSecret
ADMIN_TLS_KEY: *admin
ADMIN_CLIENT_TLS_CACERT: set admin.clientCa
{{- end }}

{{/* The environment: what the values say, and `env` besides. A name stands once; what is not said is the service's default. */}}
{{- define "ratelimit.env" -}}
{{- $v := .Values -}}
{{- $ours := include "ratelimit.fullname" . -}}
{{- $env := dict
  "BACKEND_TYPE" $v.store
  "DEBUG_HOST" $v.admin.host
  "LOG_FORMAT" $v.logging.format
  "DRAIN_SECONDS" $v.drain.seconds
  "DRAIN_TIMEOUT" (printf "%ds" (int $v.drain.timeoutSeconds))
-}}
{{- range $name, $from := dict "HASH_KEY" $v.hashKey "ADMIN_TOKEN" $v.admin -}}
  {{- $_ := set $env $name (include "ratelimit.fromSecret" (dict "secret" ($from.existingSecret | default $ours) "key" $from.key "optional" $from.optional) | fromYaml) -}}
{{- end -}}
{{- if $v.admin.readNeedsToken }}{{ $_ := set $env "ADMIN_READ_NEEDS_TOKEN" true }}{{ end -}}
{{- if $v.admin.tlsSecret -}}
  {{- $_ := set $env "ADMIN_TLS_CERT" "/etc/ratelimit/admin-tls/tls.crt" -}}
  {{- $_ := set $env "ADMIN_TLS_KEY" "/etc/ratelimit/admin-tls/tls.key" -}}
  {{- with $v.admin.clientCa }}{{ $_ := set $env "ADMIN_CLIENT_TLS_CACERT" (printf "/etc/ratelimit/admin-tls/%s" .) }}{{ end -}}
{{- end -}}
{{- if ne $v.logging.level "info" }}{{ $_ := set $env "LOG_LEVEL" $v.logging.level }}{{ end -}}
{{- if gt (int $v.workers) 1 }}{{ $_ := set $env "WORKERS" $v.workers }}{{ end -}}
{{- with $v.rules.folder }}{{ $_ := set $env "RULES_PATH" (printf "/srv/runtime_data/current/config/%s" .) }}{{ end -}}
{{- if $v.rules.controlPlane.url -}}
  {{- $_ := set $env "CONFIG_TYPE" "GRPC_XDS_SOTW" -}}
  {{- $_ := set $env "CONFIG_GRPC_XDS_SERVER_URL" $v.rules.controlPlane.url -}}
  {{- $_ := set $env "CONFIG_GRPC_XDS_NODE_ID" $v.rules.controlPlane.nodeId -}}
  {{- /* Else a pod that starts while the control plane is away opens no port, and its liveness probe ends it. */ -}}
  {{- $_ := set $env "FORCE_START_WITHOUT_INITIAL_CONFIG" true -}}
{{- end -}}
{{- if $v.tls.existingSecret -}}
  {{- $_ := set $env "GRPC_SERVER_USE_TLS" true -}}
  {{- $_ := set $env "GRPC_SERVER_TLS_CERT" "/etc/ratelimit/tls/tls.crt" -}}
  {{- $_ := set $env "GRPC_SERVER_TLS_KEY" "/etc/ratelimit/tls/tls.key" -}}
  {{- with $v.tls.clientCa }}{{ $_ := set $env "GRPC_CLIENT_TLS_CACERT" (printf "/etc/ratelimit/tls/%s" .) }}{{ end -}}
{{- end -}}
{{- if $v.regions.names -}}
  {{- $_ := set $env "REGION" $v.regions.name -}}
  {{- $_ := set $env "REGIONS" (join "," $v.regions.names) -}}
{{- end -}}
{{- if eq $v.store "redis" -}}
  {{- $redis := $v.redis -}}
  {{- range $prefix, $one := dict "REDIS_" $redis "REDIS_PERSECOND_" $redis.perSecond "HOME_REDIS_" $redis.home -}}
    {{- if $one.url -}}
      {{- $_ := set $env (print $prefix "TYPE") $one.type -}}
      {{- $_ := set $env (print $prefix "URL") $one.url -}}
      {{- if $redis.tls.enabled }}{{ $_ := set $env (print $prefix "TLS") true }}{{ end -}}
      {{- range $name, $login := dict "AUTH" $one.auth "SENTINEL_AUTH" $one.sentinelAuth -}}
        {{- with $login.existingSecret }}{{ $_ := set $env (print $prefix $name) (include "ratelimit.fromSecret" (dict "secret" . "key" $login.key) | fromYaml) }}{{ end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
  {{- if $redis.perSecond.url }}{{ $_ := set $env "REDIS_PERSECOND" true }}{{ end -}}
  {{- $_ := set $env "ON_STORE_FAILURE" $redis.onStoreFailure -}}
  {{- /* Of `local`, each pod grants its share: under the autoscaler, that of the most pods. */ -}}
  {{- $_ := set $env "INSTANCES" (ternary $v.autoscaling.maxReplicas $v.replicaCount $v.autoscaling.enabled | int | max 1) -}}
  {{- if $redis.healthCheck }}{{ $_ := set $env "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" true }}{{ end -}}
  {{- with $redis.keyPrefix }}{{ $_ := set $env "CACHE_KEY_PREFIX" . }}{{ end -}}
  {{- if $redis.tls.enabled -}}
    {{- if $redis.tls.skipHostnameVerification }}{{ $_ := set $env "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" true }}{{ end -}}
    {{- if $redis.tls.existingSecret -}}
      {{- range $name, $file := dict "REDIS_TLS_CACERT" $redis.tls.ca "REDIS_TLS_CLIENT_CERT" $redis.tls.cert "REDIS_TLS_CLIENT_KEY" $redis.tls.key -}}
        {{- if $file }}{{ $_ := set $env $name (printf "/etc/ratelimit/redis-tls/%s" $file) }}{{ end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- range $name, $value := merge (deepCopy $v.env) $env }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  {{- toYaml $value | nindent 2 }}
  {{- else }}
  {{- /* A number of YAML is a float here, and a large one would be written 2e+06. */}}
  value: {{ and (kindIs "float64" $value) (eq (floor $value) $value) | ternary (int64 $value) $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "ratelimit.image" -}}
{{- with .Values.image -}}
image: "{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}"
{{- if .pullPolicy }}
imagePullPolicy: {{ .pullPolicy }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels of what runs a command and ends: (list . name). The Service, the budget and the policy select none of it. */}}
{{- define "ratelimit.aside" -}}
{{- $name := index . 1 -}}
{{- with index . 0 -}}
{{- $own := dict "app.kubernetes.io/name" $name "app.kubernetes.io/instance" .Release.Name "app.kubernetes.io/managed-by" .Release.Service -}}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}
{{- end }}

{{- define "ratelimit.command" -}}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" }}
{{- with index $.Values $field }}
{{ $field }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "ratelimit.ruleFiles" -}}
{{- /* The example is no default of `files`: Helm would add it to those of a release. */ -}}
{{- .Values.rules.files | default (dict "web.yaml" (.Files.Get "files/web.yaml")) | toYaml }}
{{- end }}

{{- define "ratelimit.fromSecret" -}}
valueFrom:
  secretKeyRef:
    name: {{ .secret }}
    key: {{ .key }}
    {{- if .optional }}
    optional: true
    {{- end }}
{{- end }}

{{/* Of a PodMonitor's or ServiceMonitor's endpoint: the alerts know the pods as this job. */}}
{{- define "ratelimit.endpoint" -}}
- port: http
  path: /metrics
  interval: {{ .interval }}
  relabelings:
    - targetLabel: job
      replacement: ratelimit
{{- end }}
