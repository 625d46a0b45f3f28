# What a host is, read without changing it and without root. Prints one section per question:
#   ==> name rc
#   output…
# Run as `sh -s -- MODEL_DIR [IMAGE]`; parsed by roost.hosts, which has the names and their meaning.
model_dir=$1
image=${2:-}
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

gpu_state_query() {
    # Clocks and what holds them down. Newer drivers call the reasons clocks_event_reasons, and
    # all that were tried still answer to the older name.
    command -v nvidia-smi >/dev/null || return 127
    fields=index,pstate,clocks.sm,clocks.max.sm,power.draw,power.limit,temperature.gpu
    fields=$fields,utilization.gpu,clocks_throttle_reasons.active
    nvidia-smi --query-gpu=$fields --format=csv,noheader,nounits
}

peer_access() {
    command -v nvidia-smi >/dev/null || return 127
    nvidia-smi topo -p2p r
}

cdi_specs() {
    # One line a specification: path, and the driver whose libraries it names.
    for spec in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
        [ -e "$spec" ] || continue
        grep -q nvidia.com/gpu "$spec" || [ ! -r "$spec" ] || continue
        printf '%s %s\n' "$spec" \
            "$(grep -o 'libcuda\.so\.[0-9][0-9]*\.[0-9.]*[0-9]' "$spec" 2>/dev/null | sed 's/.*so\.//;q')"
    done
}

docker_group() {
    # Who asks, the groups of this session, and the group as it is written down.
    id -un && id -nG && getent group docker
}

daemon_limits() {
    # Containers inherit the limits of what starts them.
    for comm in /proc/[0-9]*/comm; do
        read -r name <"$comm" || continue
        case $name in
            containerd | dockerd) grep -h '^Max open files' "${comm%comm}limits" && return ;;
        esac
    done 2>/dev/null
    return 1
}

remove_ipc() {
    busctl get-property org.freedesktop.login1 /org/freedesktop/login1 \
        org.freedesktop.login1.Manager RemoveIPC
}

time_sync() {
    # timedatectl would start a service with temporary directories of its own.
    [ -e /run/systemd/timesync/synchronized ] || chronyc -n tracking | grep -q 'Leap status.*Normal'
}

shared_memory_owners() {
    for object in /dev/shm/*; do
        [ -e "$object" ] && stat -c %u "$object"
    done | sort -u
}

interfaces() {
    for folder in /sys/class/net/*; do
        printf '%s %s %s\n' "${folder##*/}" "$(cat "$folder/operstate")" "$(cat "$folder/mtu")"
    done
}

container_modules() {
    # What Ansible's modules for Docker need of the Python that they run with; not imported, only
    # looked for.
    /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("requests"))'
}

units() {
    # Those that are as a deploy writes them, by what is in them.
    find /etc/systemd/system -maxdepth 1 -name 'roost-*.service' -user root -group root -perm 0644 \
        -exec sha256sum {} +
}

program() {
    # The files of the program that the watchdog runs, and whatever else is among them.
    find /usr/local/lib/roost/onhost -type f -exec sha256sum {} +
}

rollout_lease() {
    # Whose rollout the host takes part in, after the seconds since that was renewed.
    cd /var/lib/roost/releases && renewed=$(stat -c %Y rollout.json) || return
    echo $(($(date +%s) - renewed)) && cat rollout.json
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
section disk_root df -Pk /
section gpu_state gpu_state_query
section gpu_peers peer_access
section driver_module cat /sys/module/nvidia/version
section toolkit nvidia-ctk --version
section cdi cdi_specs
section docker_group docker_group
section daemon_limits daemon_limits
section shared_memory df -Pk /dev/shm
section shared_memory_owners shared_memory_owners
section remove_ipc remove_ipc
section time_sync time_sync
section interfaces interfaces
section routes cat /proc/net/route
section watchdog cat /var/lib/roost/watchdog/state.json
section watchdog_unit systemctl is-active roost-watchdog
section watchdog_at_boot systemctl is-enabled roost-watchdog
section units units
section program program
section rollout rollout_lease
section docker_unit systemctl is-enabled docker
section container_modules container_modules
[ -z "$image" ] || section image docker image inspect --format '{{json .}}' "$image"
section python sh -c 'command -v python3'
