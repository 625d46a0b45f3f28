# What a host is, read without changing it and without root. Prints one section per question:
#   ==> name rc
#   output…
# Run as `sh -s -- MODEL_DIR`; parsed by roost.hosts, which has the names and their meaning.
model_dir=$1
LC_ALL=C
export LC_ALL

section() {
    name=$1
    shift
    output=$("$@" 2>&1)
    printf '==> %s %s\n%s\n' "$name" "$?" "$output"
}

existing_parent() {
    path=$1
    while [ ! -e "$path" ] && [ "$path" != / ]; do path=$(dirname "$path"); done
    printf '%s' "$path"
}

gpu_query() {
    command -v nvidia-smi >/dev/null || return 127
    nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.free,driver_version,compute_cap \
        --format=csv,noheader,nounits
}

runtime_hook() {
    # Docker's --gpus works where dockerd finds this hook, or where CDI specifications exist.
    PATH=$PATH:/usr/bin:/usr/local/bin command -v nvidia-container-runtime-hook && return 0
    ls /etc/cdi/nvidia*.yaml /var/run/cdi/nvidia*.yaml 2>/dev/null | head -n 1 | grep .
}

docker_root() {
    root=$(docker info --format '{{.DockerRootDir}}' 2>/dev/null)
    existing_parent "${root:-/var/lib/docker}"
}

section machine uname -m
section kernel uname -r
section meminfo cat /proc/meminfo
section gpu gpu_query
section runtime_hook runtime_hook
section docker docker info --format '{{json .}}'
section containers docker ps --format '{{.Names}}\t{{.Ports}}'
section disk_models df -Pk "$(existing_parent "$model_dir")"
section disk_docker df -Pk "$(docker_root)"
section tcp cat /proc/net/tcp
section tcp6 cat /proc/net/tcp6
section python sh -c 'command -v python3'
